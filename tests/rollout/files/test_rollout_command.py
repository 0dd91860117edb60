"""`sparrow-lab rollout` from prompts to samples: interrupted, resumed, shared out, refused."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sparrow_lab.cli import main
from sparrow_lab.config.schema import ModelConfig, RolloutConfig, TaskConfig
from sparrow_lab.models.load import load_model
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.files import windows, writer
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.tasks import make_task
from sparrow_lab.tasks.symbols import EOS, SYMBOLS

SPARSE = Schedule.fixed(32, 8, dense_layers=1)
CAP = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five prompts, as ids and as text in turn, and a schedule."""
    monkeypatch.chdir(tmp_path)
    SPARSE.save(tmp_path / "schedule.json")
    lines = [
        json.dumps(
            {"prompt": " ".join(SYMBOLS[t] for t in tokens)} if i % 2 else {"tokens": tokens}
        )
        for i, tokens in enumerate(prompts())
    ]
    (tmp_path / "prompts.jsonl").write_text("\n\n".join(lines) + "\n")
    return tmp_path


def prompts() -> list[list[int]]:
    task = make_task(TaskConfig.model_validate({"name": "pointer_chase"}))
    return [list(p.tokens) for p in task.prompts("evaluate", 0, 5)]


def run(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> str:
    """Run the command; what it said."""
    base = {
        "--model": "tiny-s",
        "--prompts": "prompts.jsonl",
        "--schedule": "schedule.json",
        "--out": "samples.parquet",
        "--samples": "3",
        "--max-new-tokens": str(CAP),
        "--device": "cpu",
    }
    given = dict(zip(options[::2], options[1::2], strict=True))
    arguments = [x for pair in {**base, **given}.items() for x in pair]
    with pytest.raises(SystemExit) as left:
        main(["rollout", *arguments])
    said = capsys.readouterr().err
    assert left.value.code == code, said
    return " ".join(said.split())


def test_the_file_holds_what_the_engine_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(capsys, "--seed", "7")
    assert "15/15 samples" in said and "wrote samples.parquet" in said
    assert sorted(p.name for p in folder.iterdir()) == [
        "prompts.jsonl",
        "samples.parquet",
        "schedule.json",
    ]
    table = pd.read_parquet("samples.parquet")
    model, tokenizer = load_model(ModelConfig(name="tiny-s"))
    batch = RolloutEngine(model, SPARSE).generate(
        prompts(), 3, RolloutConfig(), max_new_tokens=CAP, stop_tokens=(EOS,), seed=7
    )
    assert table["prompt"].tolist() == [p for p in range(5) for _ in range(3)]
    assert table["sample"].tolist() == [0, 1, 2] * 5
    assert table["finished"].tolist() == batch.finished_N.tolist()
    for s, answer in enumerate(batch.answers()):
        row: Any = table.iloc[s]
        n = len(answer)
        assert row["tokens"].tolist() == answer
        assert row["logp"].tolist() == pytest.approx(batch.logp_NT[s, :n].tolist(), abs=1e-4)
        assert row["raw_logp"].tolist() == pytest.approx(row["logp"].tolist(), abs=1e-6)
        assert row["attended"].tolist() == batch.attended_NT[s, :n].tolist()
        assert row["text"] == tokenizer.decode([t for t in answer if t != EOS])


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_an_interrupted_rollout_goes_on_with_what_is_missing(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
    code: int,
) -> None:
    run(capsys, "--out", "whole.parquet")
    ended = writer.Writer.ended

    def interrupt(self: Any, numbers: list[int], batch: Any) -> None:
        ended(self, numbers, batch)
        if self.done >= 6:
            signal.raise_signal(sent)

    with monkeypatch.context() as patch:
        patch.setattr(writer, "EVERY_SAMPLES", 4)
        patch.setattr(writer.Writer, "ended", interrupt)
        run(capsys, code=code)
    assert not (folder / "samples.parquet").exists()
    parts = sorted((folder / "samples.parquet.parts").glob("0*.parquet"))
    kept = sum(len(pd.read_parquet(p)) for p in parts)
    assert 6 <= kept < 15
    said = run(capsys)
    assert f"kept {kept} of 15 samples" in said and f"{15 - kept}/{15 - kept} samples" in said
    whole, resumed = (pd.read_parquet(x) for x in ("whole.parquet", "samples.parquet"))
    for column in ("prompt", "sample", "finished", "text"):
        assert whole[column].tolist() == resumed[column].tolist()
    assert [x.tolist() for x in whole["tokens"]] == [x.tolist() for x in resumed["tokens"]]
    assert "is whole already" in run(capsys)


def stopped(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--seed", "1"), "seed = 0, but the run has 1"),
        (("--schedule", "dense"), 'schedule = "'),
        (("--samples", "2"), "samples = 3, but the run has 2"),
        (("--temperature", "0.5"), "temperature = 1.0, but the run has 0.5"),
        (("--model", "tiny-m"), 'model = "tiny-s", but the run has "tiny-m"'),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_samples_of_other_settings_are_refused_by_name(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, str],
    what: str,
    finished: bool,
) -> None:
    if finished:
        run(capsys)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(
                writer.Writer, "ended", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            )
            run(capsys, code=130)
    said = run(capsys, *options, code=2)
    assert what in said
    assert "samples.parquet" in said


@pytest.mark.parametrize("room", [1, 2 * 3 * CAP])
def test_small_batches_say_what_one_large_one_does(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    room: int,
) -> None:
    run(capsys, "--out", "whole.parquet")
    monkeypatch.setattr(windows, "TOKENS", room)
    run(capsys)
    whole, parted = (pd.read_parquet(x) for x in ("whole.parquet", "samples.parquet"))
    for column in ("prompt", "sample", "finished", "text"):
        assert whole[column].tolist() == parted[column].tolist()


def test_a_prompt_that_is_too_long_is_refused_before_the_first_is_begun(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "TOKENS", 1)
    with (folder / "prompts.jsonl").open("a") as lines:
        lines.write(json.dumps({"tokens": [1] * 200}) + "\n")
    assert "holds 25 " in run(capsys, "--memory", "160KB", code=2)
    assert not list((folder / "samples.parquet.parts").glob("0*.parquet"))


def test_windows_hold_every_prompt_once() -> None:
    for prompts, samples, cap in ((1, 1, 1), (1000, 8, 32_000), (7, 1, 1 << 26)):
        found = list(windows.windows(prompts, samples, cap))
        assert [p for first, last in found for p in range(first, last)] == list(range(prompts))
        assert all(
            last - first == 1 or (last - first) * samples * cap <= windows.TOKENS
            for first, last in found
        )


def test_each_process_does_its_share(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "--out", "whole.parquet")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "this process is done; others are not" in run(capsys)
    assert not Path("samples.parquet").exists()
    monkeypatch.setenv("RANK", "0")
    assert "wrote samples.parquet" in run(capsys)
    whole, shared = (pd.read_parquet(x) for x in ("whole.parquet", "samples.parquet"))
    assert [x.tolist() for x in whole["tokens"]] == [x.tolist() for x in shared["tokens"]]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", ":3: is not JSON"),
        ("[1]", ":3: is not a JSON object"),
        ('{"promt": "k1"}', "there are 'promt' fields (did you mean 'prompt'?)"),
        ('{"prompt": "k1", "tokens": [1]}', "one of prompt, messages, tokens"),
        ('{"prompt": " "}', ":3: 'prompt' is ' ', not text"),
        ('{"prompt": "k1 pear"}', ":3: the model's vocabulary has no 'pear'"),
        ('{"tokens": [1, 1.5]}', ":3: 'tokens' must be a list of whole numbers"),
        ('{"tokens": [1, 999]}', ":3: token 999 is not in the vocabulary of 71"),
        ('{"tokens": []}', ":3: the prompt has no tokens"),
        ('{"messages": [{"role": "user"}]}', "need a model with a chat template"),
    ],
)
def test_a_bad_line_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], line: str, what: str
) -> None:
    first = (folder / "prompts.jsonl").read_text().splitlines()[0]
    (folder / "prompts.jsonl").write_text(f"{first}\n\n{line}\n")
    said = run(capsys, code=2)
    assert said.startswith("error: prompts.jsonl:3:") and what in said


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--prompts", "gone.jsonl"), "--prompts gone.jsonl: no such file"),
        (("--schedule", "gone.json"), "gone.json"),
        (("--schedule", "qwen3-1.7b-0.86"), "made for model"),
        (("--memory", "lots"), "neither bytes"),
        (("--memory", "30KB"), "GiB), but the KV cache holds"),
        (("--dtype", "int8"), "--dtype: 'int8' is unknown; allowed: float32"),
        (("--top-p", "0"), "--top-p: must be above 0"),
        (("--max-new-tokens", "5000"), "the model's context is 512"),
        (("--out", "."), "--out .: is a folder"),
        (("--out", "prompts.jsonl"), "exists and is not a rollout's"),
    ],
)
def test_what_cannot_be_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, str], what: str
) -> None:
    said = run(capsys, *options, code=2)
    assert what in said and "Traceback" not in said


def test_a_damaged_part_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    run(capsys)
    (part,) = (folder / "samples.parquet.parts").glob("0*.parquet")
    part.write_bytes(part.read_bytes()[:100])
    assert f"{part.name}: is damaged" in run(capsys, code=2)
