from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.cli import main
from sparrow_lab.sparsity.presets import load_preset, preset_names
from sparrow_lab.sparsity.schedule import DENSE, Schedule


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["schedule", *(str(a) for a in arguments)])
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


def curve(**changes: Any) -> dict[str, Any]:
    """p5 falls with length and rises with budget; 128 reaches 0.86 up to bin 16, 256 up to 32."""
    table = {64: [0.9, 0.7, 0.5], 128: [0.95, 0.88, 0.7], 256: [0.99, 0.95, 0.9]}
    rows = [
        {
            "trajectory": trajectory,
            "budget": budget,
            "bin_start": 16 * i,
            "prompts": 20,
            "tokens": 300,
            "p05": p05 - (0.2 if trajectory == "dense" else 0),
            "p05_low": p05 - 0.03,
            "p05_high": p05 + 0.03,
        }
        for trajectory in ("own", "dense")
        for budget, values in table.items()
        for i, p05 in enumerate(values)
    ]
    sparsity = {
        "page_size": 8,
        "landmark": "minmax",
        "score": "group_mean",
        "dense_layers": 1,
        "reserved": {"first_tokens": 8, "last_tokens": 9, "first_pages": None, "last_pages": None},
    }
    data = {"schema": 1, "model": "tiny-s", "page_size": 8, "bin_width": 16, "rows": rows}
    return {**data, "settings": {"sparsity": sparsity}, **changes}


@pytest.fixture
def curve_path(tmp_path: Path) -> Path:
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(curve()))
    return path


def test_a_curve_and_a_tau_make_a_schedule_file(
    curve_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new" / "schedule.json"
    code, out, err = run(capsys, "--curve", curve_path, "--tau", "0.86", "-o", target)
    assert code == 0 and f"wrote {target}" in err.replace("\n", "")
    made = Schedule.load(target)
    assert (made.edges, made.budgets) == ((0, 16, 32), (64, 128, 256))
    assert (made.model, made.tau, made.name) == ("tiny-s", 0.86, "tau=0.86")
    assert (made.landmark, made.dense_layers, made.reserved_pages()) == ("minmax", 1, (1, 2))
    assert "tau=0.86, tiny-s, page size 8" in out and "[0.870, 0.930]" in out
    assert "nothing was measured from length 48 on" in out


def test_rule_and_trajectory_change_the_choice(
    curve_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def budgets(*options: str) -> list[int | None]:
        code, out, _ = run(capsys, "--curve", curve_path, "--tau", "0.86", "--json", *options)
        assert code == 0
        found: list[int | None] = json.loads(out)["budgets"]
        return found

    assert budgets() == [64, 128, 256]
    assert budgets("--rule", "lower") == [64, 256]
    assert budgets("--trajectory", "dense") == [None]


def test_an_unreachable_tau_says_so(curve_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--curve", curve_path, "--tau", "0.97")
    assert code == 0
    assert "no budget reaches tau from length 16: full attention" in out.replace("\n", " ")
    assert "unreached" in out and "nan" not in out


def test_levels_that_come_out_alike_are_shown_as_one_run(
    curve_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "--curve", curve_path, "--tau", "0.86", "--tau", "0.87")
    assert code == 0 and "one run, several names" in out and "tau=0.87" in out
    code, out, _ = run(capsys, "--curve", curve_path, "--tau", "0.86", "--tau", "0.6")
    assert code == 0 and "one run" not in out


def test_presets_are_listed_shown_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "--list")[1].split() == preset_names()
    code, out, _ = run(capsys, "--preset", "qwen3-8b-0.86", "-o", tmp_path / "p.json")
    assert code == 0 and "33985" in out and "6208" in out
    assert Schedule.load(tmp_path / "p.json") == load_preset("qwen3-8b-0.86")


def test_a_file_is_shown_with_its_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.json"
    measured = {"prompts": 64, "p05": 0.873, "p05_low": 0.86, "p05_high": 0.88, "ceiling_p05": None}
    Schedule(8, (0, 64), (64, DENSE), name="mine", measured=measured).save(path)
    code, out, _ = run(capsys, path)
    assert code == 0 and "mine, page size 8" in out and "all" in out
    assert "measured on 64 fresh prompts: p5 0.873 [0.860, 0.880], ceiling -" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "name a schedule file, --preset, or --curve with --tau"),
        (("--tau", "0.86"), "--tau: needs --curve"),
        (("--curve", "CURVE"), "--curve: needs --tau"),
        (("--curve", "CURVE", "--tau", "1.5"), "tau must be above 0 and at most 1, found 1.5"),
        (("--curve", "CURVE", "--tau", "high"), "--tau"),
        (("--curve", "CURVE", "--tau", "0.86", "--rule", "upper"), "--rule"),
        (("--curve", "none.json", "--tau", "0.86"), "none.json: cannot be read"),
        (("--curve", "CURVE", "--tau", "0.8", "--tau", "0.9", "-o", "x"), "takes one schedule"),
        (("--preset", "qwen3-8b-0.85"), "did you mean 'qwen3-8b-0.8"),
        (("--preset", "qwen3-8b-0.86", "--page-size", "32"), "page size 16, but the run has"),
        (("--preset", "qwen3-8b-0.86", "--model", "tiny-s"), "model qwen3-8b, but the run has"),
        (("none.json",), "none.json: cannot be read"),
        (("--preset", "qwen3-8b-0.86", "-o", "CURVE/x.json"), "cannot be written"),
    ],
)
def test_mistakes_are_one_line_and_exit_with_2(
    curve_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    says: str,
) -> None:
    code, _, err = run(capsys, *(a.replace("CURVE", str(curve_path)) for a in arguments))
    assert code == 2 and err.startswith("error: ") and err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"settings": {}}, "'settings.sparsity' is missing"),
        ({"settings": {"sparsity": {"page_size": "8"}}}, "settings.sparsity.page_size"),
        ({"rows": []}, "holds no row"),
    ],
)
def test_a_curve_that_lacks_something(
    curve_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], says: str
) -> None:
    curve_path.write_text(json.dumps(curve(**change)))
    code, _, err = run(capsys, "--curve", curve_path, "--tau", "0.86")
    assert code == 2 and err.startswith(f"error: {curve_path}") and says in err
