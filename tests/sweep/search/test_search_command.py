"""`sparrow-lab sweep` with the methods random, optuna and bracket: previews and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparrow_lab.cli import main
from tests.sweep.search.driver import BRACKET, OPTUNA, drive


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["sweep", *arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def make(text: str) -> str:
        path = tmp_path / "s.yaml"
        path.write_text(text)
        return str(path)

    return make


def test_a_dry_run_shows_what_would_come_first(
    write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--dry-run", "--runs", str(tmp_path / "runs")]
    assert call(write(OPTUNA), *runs) == 0
    said = capsys.readouterr().out
    assert "optuna (tpe): at most 7 trials, each at 2 combinations of the axes; 2 at once" in said
    assert said.count("first: lr=") == 2 and "9 points would run" in said
    assert " a proposal on one worker, " in said and " in all" in said
    assert call(write(BRACKET), *runs) == 0
    said = capsys.readouterr().out
    assert "bracket: about 8 levels of at most 3 seeds: 24 training runs" in said
    assert "first: tau=0.25, seed=0 (the end that should collapse)" in said
    assert "first: tau=0.95, seed=1 (the end that should be stable)" in said
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_goes_on_from_what_is_there(
    write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, runs = write(OPTUNA), tmp_path / "runs"
    drive(Path(file), runs, None, "sweep.optuna.trials=4")
    before = sorted(p.read_bytes() for p in runs.rglob("*.json*"))
    assert call(file, "--dry-run", "--runs", str(runs)) == 0
    said = capsys.readouterr().out
    assert said.count("next: lr=") == 2 and "8 points would run" in said
    assert sorted(p.read_bytes() for p in runs.rglob("*.json*")) == before


def test_a_search_that_cannot_begin_says_why_with_the_place(
    write, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(BRACKET)
    for option in ("--dry-run", "--no-report"):
        assert call(file, "--set", "stages=[schedule,train]", option) == 2
        err = capsys.readouterr().err
        assert "needs the stage 'calibrate'" in err and "s.yaml:8:" in err and err.count("\n") == 1


def test_mistakes_are_one_line(write, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["--only", "2"], "--only: the method optuna plans as it goes"),
        (["--set", "sweep.optuna.trails=3"], "did you mean 'trials'?"),
        (["--set", "sweep.space.train.rl={low: 1, high: 2}"], "there is no field 'train.rl'"),
    ):
        assert call(write(OPTUNA), *arguments) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and words in err and err.count("\n") == 1
