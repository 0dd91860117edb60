"""`sparrow-lab sweep` with the methods random, optuna and bracket: previews and mistakes."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_lab.cli import main
from sparrow_lab.sweep.decide import cancel
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import run_sweep
from sparrow_lab.sweep.states import read_states
from tests.sweep.search.driver import BRACKET, OPTUNA, Writes, drive, open_controller
from tests.sweep.search.stages import STAGES


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


@pytest.mark.parametrize("text", [OPTUNA, BRACKET], ids=["optuna", "bracket"])
def test_what_another_command_has_proposed_meanwhile_is_not_called_dropped(
    write, tmp_path: Path, text: str
) -> None:
    """Two commands at once: the second has read the folder before the first has begun."""
    file, runs = Path(write(text)), tmp_path / "runs"
    late = [open_controller(file, runs, Writes())]
    drive(file, runs, turns=1)
    late.append(open_controller(file, runs, Writes()))
    stale = [search.plan_ahead() for search in late[1:]]
    drive(file, runs)
    for search, plan in zip(late, [replace(stale[0], points=()), *stale], strict=True):
        console = Console(record=True, width=200, file=io.StringIO())
        code = run_sweep(search.sweep, plan, b"", Options(), console, stages=STAGES, search=search)
        said = console.export_text()
        assert code == 0 and "no longer in the file" not in said and "points are done" in said


def test_a_cancelled_search_says_what_it_takes_up_again(write, tmp_path: Path) -> None:
    file, runs = Path(write(OPTUNA)), tmp_path / "runs"
    search = drive(file, runs, turns=1)
    waiting = [i for i, s in read_states(search.sweep).items() if s.state == "planned"]
    cancel(search.sweep, [], Console(quiet=True))
    search = open_controller(file, runs, Writes())
    console = Console(record=True, width=200, file=io.StringIO())
    options = Options(parallel=2)
    code = run_sweep(
        search.sweep, search.plan_ahead(), b"", options, console, stages=STAGES, search=search
    )
    assert code == 0
    said = console.export_text()
    assert f"is taken up again, with {len(waiting)} points that were cancelled with it" in said
