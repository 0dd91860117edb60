from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.cli import main
from sparrow_lab.sparsity.presets import load_preset
from sparrow_lab.sparsity.schedule import Schedule


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["cost", *arguments])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


QWEN = ("--model", "Qwen/Qwen3-1.7B")


def test_the_table_shows_dense_beside_sparse(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *QWEN, "--schedule", "qwen3-1.7b-0.86", "--length", "32768")
    assert code == 0 and err == ""
    assert "qwen3-1.7b, qwen3-1.7b-0.86, page size 16, h200, batch 32" in out
    for word in ("32768", "4096", "speed-up", "estimates", "200 prompt and 32568 generated"):
        assert word in out
    assert max(len(line) for line in out.splitlines() if "│" in line) <= 80


def test_tiny_models_are_priced_too(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--model", "tiny-s", "--budget", "64", "--page-size", "8", "--length", "200")
    code, out, _ = run(capsys, *arguments, "--hardware", "cpu-2-core", "--dtype", "float32")
    assert code == 0 and "tiny-s, budget=64, page size 8" in out and "641k" in out
    code, _, err = run(capsys, "--model", "tiny-z", "--budget", "64")
    assert code == 2 and "did you mean 'tiny-" in err


def numbers(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    report: dict[str, Any] = json.loads(out)
    return report


def test_numbers_agree_with_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    report = numbers(capsys, *QWEN, "--budget", "2048", "--length", "8000", "--dense-layers", "0")
    (step,) = report["steps"]
    assert step["attended"] == 2048
    assert step["dense_eflops"] == pytest.approx(3.441e9 + 1.910e11, rel=1e-3)
    # scoring once a KV head costs a little less than the check vectors' once a query head
    assert step["dense_eflops"] / step["sparse_eflops"] == pytest.approx(3.34, abs=0.02)
    assert 1 < step["dense_s"] / step["sparse_s"] < 3.3
    whole = report["trajectory"]
    assert whole["prompt"] + whole["tokens"] == 8000
    assert whole["sparse_attended_mean"] < 2048 < whole["dense_attended_mean"]


def test_short_lengths_and_a_single_token_gain_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = numbers(capsys, *QWEN, "--budget", "512", "--length", "100", "--tokens", "1")
    assert report["steps"][0]["dense_s"] == report["steps"][0]["sparse_s"]
    whole = report["trajectory"]
    assert whole["sparse_attended_mean"] is None and whole["dense_s"] == whole["sparse_s"] > 0
    code, out, _ = run(capsys, *QWEN, "--budget", "512", "--length", "100", "--tokens", "1")
    assert code == 0 and "1.00" in out and "nan" not in out


def test_precision_counts(capsys: pytest.CaptureFixture[str]) -> None:
    half, full = (
        numbers(capsys, *QWEN, "--budget", "512", "--dtype", t) for t in ("bfloat16", "float32")
    )
    assert full["steps"][-1]["dense_s"] > half["steps"][-1]["dense_s"]
    assert full["largest_batch"] < half["largest_batch"]


def test_config_and_schedule_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 1000,
    }
    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    schedule = tmp_path / "s.json"
    load_preset("qwen3-1.7b-0.86").save(schedule)
    arguments = ("--model", str(folder / "config.json"), "--schedule", str(schedule))
    code, _, err = run(capsys, *arguments)
    assert code == 2 and "model qwen3-1.7b, but the run has model My-Llama" in err
    assert numbers(capsys, *arguments, "--any-model")["model"] == "My-Llama"


def test_memory_and_roughness_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*QWEN, "--budget", "512", "--batch", "500", "--hardware", "cpu-2-core")
    code, out, _ = run(capsys, *arguments)
    assert code == 0 and "order of magnitude" in out
    assert "sequences fit, not 500" in out


def test_a_schedule_file_that_leaves_no_sparse_layer_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    Schedule.fixed(40, 8, dense_layers=3).save(path)
    code, out, err = run(capsys, "--model", "tiny-s", "--schedule", str(path))
    assert code == 2 and out == "" and err.count("\n") == 1
    assert "schedule budget=40: found 3 dense layers, but tiny-s has 3 layers" in err
    Schedule.dense(8, dense_layers=3).save(path)
    code, out, _ = run(capsys, "--model", "tiny-s", "--schedule", str(path))
    assert code == 0 and "dense" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((*QWEN,), "error: cost: give either --schedule or --budget"),
        ((*QWEN, "--schedule", "qwen3-1.7b-0.86", "--budget", "64"), "give either"),
        ((*QWEN, "--schedule", "qwen3-1.7b-0.87"), "did you mean 'qwen3-1.7b-0.8"),
        ((*QWEN, "--schedule", "no.json"), "error: no.json: cannot be read"),
        (
            (*QWEN, "--schedule", "qwen3-4b-0.86"),
            "model qwen3-4b, but the run has model qwen3-1.7b",
        ),
        (
            (*QWEN, "--schedule", "qwen3-1.7b-0.86", "--page-size", "32"),
            "page size 16, but the run has page size 32",
        ),
        ((*QWEN, "--schedule", "qwen3-1.7b-0.86", "--dense-layers", "0"), "--dense-layers"),
        ((*QWEN, "--budget", "63"), "63 from length 0 is not a multiple of the page size 16"),
        ((*QWEN, "--budget", "16"), "below the reserved pages"),
        ((*QWEN, "--budget", "64", "--hardware", "h20"), "did you mean 'h200'"),
        ((*QWEN, "--budget", "64", "--length", "0"), "--length"),
        ((*QWEN, "--budget", "64", "--batch", "many"), "--batch"),
        ((*QWEN, "--budget", "64", "--length", "99999999999"), "allowed: at most 10000000"),
        ((*QWEN, "--budget", "64", "--tokens", "99999999999"), "--tokens: found"),
        ((*QWEN, "--budget", "64", "--prompt", "99999999999"), "--prompt: found"),
        ((*QWEN, "--budget", "99999999999999999999"), "--budget: found"),
        (
            ("--model", "tiny-s", "--budget", "40", "--page-size", "8", "--dense-layers", "9"),
            "error: --dense-layers: found 9, but tiny-s has 3 layers and at least one has to be "
            "sparse; allowed: 0 to 2",
        ),
        ((*QWEN, "--budget", "64", "--dense-layers", "28"), "found 28, but qwen3-1.7b has 28"),
        (("--budget", "64", "--model", "no/config.json"), "cannot be read"),
        (("--budget", "64"), "--model"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert says in err
