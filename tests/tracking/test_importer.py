"""Run folders into MLflow: everything once, nothing twice, the later attempt's value wins."""

from __future__ import annotations

import math
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.tracking import pictures
from sparrow_lab.tracking.tags import ALIAS, FAILURE, NAMES
from tests.tracking import simulate
from tests.tracking.held import TRAIN, History, check_equal, clean, dump, expected, mlflow_runs
from tests.tracking.simulate import claim, make_plan, make_sweep, write_steps

pytestmark = pytest.mark.usefixtures("few_pictures")


def test_a_whole_sweep(runs: Path, sweep: SweepFolder, history: History) -> None:
    simulate.run_all(sweep, steps=20)
    summary = clean(sweep)
    assert (summary.created, summary.waiting, summary.ended) == (4, 0, True)
    found = mlflow_runs(runs)
    parent = found.pop("sweep")
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["sparrow.done"] == "4 of 4"
    assert set(found) == {point.id for point in sweep.read_plan().points}
    for run in found.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.info.status == "FINISHED"
    train = found[TRAIN]
    assert train.info.run_name == "train tau=0.86 tiny-s page=8 seed=0"
    assert train.data.params["train.steps"] == "20"
    assert train.data.params["tau"] == "0.86"
    assert train.data.metrics["evaluate/peak"] == 0.93
    claimed = (sweep.point(TRAIN).attempts()[0].read_claim() or {})["time"]
    assert train.info.start_time == round(claimed * 1000)
    result = sweep.point(TRAIN).read_result() or {}
    assert train.info.end_time == round(result["finished"] * 1000)
    assert summary.values > 300
    check_equal(runs, sweep, history)


def test_curves_are_drawn_over_budget_and_length(
    runs: Path, sweep: SweepFolder, history: History
) -> None:
    simulate.run_all(sweep, steps=5)
    clean(sweep)
    curve = history(runs, "cal0")
    assert [step for name, step in curve if name == "curve/own/p05"] == [32, 48, 64, 96, 128, 192]
    schedule = history(runs, "sch-0.86")
    budgets = {step: v[0][0] for (name, step), v in schedule.items() if name == "schedule/budget"}
    assert budgets == {0: 64.0, 96: 96.0, 144: 128.0}
    assert ("measured/p05_by_length", 64) in schedule


def test_a_dense_schedule_shows_no_budget(runs: Path, history: History) -> None:
    sweep = make_sweep(runs, make_plan("demo", ["dense"]))
    simulate.run_schedule(sweep.point("sch-dense"), "dense")
    clean(sweep)
    assert "schedule/budget" not in {name for name, _ in history(runs, "sch-dense")}


def test_artifacts_and_pictures(
    runs: Path, sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image

    monkeypatch.setattr(pictures, "PICTURES", 10)
    simulate.run_all(sweep, steps=20)
    summary = clean(sweep)
    run = mlflow_runs(runs)[TRAIN]
    folder = runs / "mlartifacts" / "demo" / run.info.run_id / "artifacts"
    names = {path.name for path in folder.iterdir()}
    files = {"point.json", "result.json", "log.txt", "histograms.parquet"}
    assert names == {*files, "acceptance", "images"}
    pictures_ = sorted((folder / "acceptance").iterdir())
    assert [path.name for path in pictures_] == [f"step-{s:06d}.png" for s in range(0, 20, 2)]
    assert summary.images == 10
    assert Image.open(pictures_[0]).size[0] > 1000
    grid = {int(p.name.split("+")[2]) for p in (folder / "images").glob("acceptance+step+*.png")}
    assert grid == set(range(0, 20, 2))
    calibrate = mlflow_runs(runs)["cal0"].info.run_id
    names = {p.name for p in (runs / "mlartifacts" / "demo" / calibrate / "artifacts").iterdir()}
    assert {"curve.json", "point.json", "result.json"} <= names


def test_again_adds_nothing(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_all(sweep, steps=5)
    clean(sweep)
    before = dump(runs)
    again = clean(sweep)
    assert not again.changed
    assert again.unchanged == 4
    # A copy of the folder has other times, but the same content.
    for path in sweep.path.rglob("*.json"):
        path.touch()
    assert not clean(sweep).changed
    assert dump(runs, "metrics") == [line for line in before if '"metrics"' in line]


def test_a_running_task_grows(runs: Path, sweep: SweepFolder, history: History) -> None:
    attempt = claim(sweep.point(TRAIN))
    clean(sweep)
    assert mlflow_runs(runs)[TRAIN].info.status == "RUNNING"
    total = 0
    for steps in (range(0, 7), range(7, 8), range(8, 20)):
        write_steps(attempt, steps)
        summary = clean(sweep)
        assert summary.rebuilt == 0
        total += summary.values
        check_equal(runs, sweep, history)
    assert total == len(expected(sweep))
    simulate.finish_train(sweep.point(TRAIN), attempt)
    assert clean(sweep).rebuilt == 0
    assert mlflow_runs(runs)[TRAIN].info.status == "FINISHED"
    check_equal(runs, sweep, history)


def test_repeated_steps_show_the_later_attempt_only(
    runs: Path, sweep: SweepFolder, history: History
) -> None:
    folder = sweep.point(TRAIN)
    first = claim(folder)
    # The older attempt's values and times are the greater ones: MLflow would prefer them.
    write_steps(first, range(20))
    text = first.events_path.read_text().replace('"policy/loss": 1.', '"policy/loss": 9.')
    first.events_path.write_text(text.replace('"time": ', '"time": 1'))
    clean(sweep)
    held = history(runs, TRAIN)
    assert held["policy/loss", 19][0][0] == pytest.approx(9.019)
    first.write_failure("error", "the node died", "OSError")
    second = claim(folder)
    clean(sweep)
    write_steps(second, range(15, 18))
    summary = clean(sweep)
    assert (summary.rebuilt, summary.created) == (1, 0)
    held = history(runs, TRAIN)
    steps = sorted(step for name, step in held if name == "policy/loss")
    assert steps == list(range(18)), "steps that are about to be repeated must wait"
    assert [round(held["policy/loss", s][0][0], 6) for s in (14, 15, 17)] == [9.014, 2.015, 2.017]
    last = mlflow_runs(runs)[TRAIN].data.metrics["policy/loss"]
    assert last == pytest.approx(2.017)
    write_steps(second, range(18, 20))
    assert clean(sweep).rebuilt == 0, "one rebuild an attempt"
    simulate.finish_train(folder, second)
    assert clean(sweep).rebuilt == 0
    check_equal(runs, sweep, history)
    assert mlflow_runs(runs)[TRAIN].data.metrics["policy/loss"] == pytest.approx(2.019)


def test_an_attempt_that_failed_again_earlier_leaves_the_rest(
    runs: Path, sweep: SweepFolder, history: History
) -> None:
    folder = sweep.point(TRAIN)
    first = claim(folder)
    write_steps(first, range(10))
    first.write_failure("error", "first")
    second = claim(folder)
    write_steps(second, range(5, 7))
    second.write_failure("error", "second")
    clean(sweep)
    check_equal(runs, sweep, history)
    held = history(runs, TRAIN)
    assert [int(held["policy/loss", s][0][0]) for s in (4, 5, 6, 7, 9)] == [1, 2, 2, 1, 1]


def test_a_late_import_gives_what_following_gave(runs: Path, history: History) -> None:
    def play(name: str, often: bool) -> dict[tuple[str, int], float]:
        sweep = make_sweep(runs, make_plan(name, [0.86], steps=20))
        folder = sweep.point(TRAIN)
        first = claim(folder)
        write_steps(first, range(12))
        if often:
            clean(sweep)
        first.write_failure("interrupted", "asked to stop")
        second = claim(folder)
        write_steps(second, range(8, 20))
        if often:
            clean(sweep)
        simulate.finish_train(folder, second)
        clean(sweep)
        run = mlflow_runs(runs, name)[TRAIN]
        values = {k: v for k, v in run.data.metrics.items() if not k.startswith("total/")}
        check = {(k, -1): v for k, v in values.items()}
        shutil.rmtree(sweep.path)
        return check

    assert play("often", True) == play("late", False)


def test_no_infinity_reaches_mlflow(runs: Path, history: History) -> None:
    sweep = make_sweep(runs, make_plan("demo", [0.8]))
    simulate.run_train(sweep.point("tra-0.8-0"), steps=40, collapse=True)
    summary = clean(sweep)
    held = history(runs, "tra-0.8-0")
    values = [value for cells in held.values() for value, _ in cells]
    assert all(abs(value) < 1e300 for value in values)
    assert held["nonfinite/policy/grad_norm", 39][0][0] == 5.0
    assert held["nonfinite/policy/kl_rollout", 38][0][0] == 1.0
    assert summary.nonfinite == 6
    truth = dict(
        zip(*read_events(sweep.point("tra-0.8-0")).series("policy/grad_norm"), strict=True)
    )
    assert truth[39] == math.inf, "the run folder keeps the true value"


def test_another_name_of_a_run_is_shown_as_one(runs: Path, history: History) -> None:
    sweep = make_sweep(runs, make_plan("demo", [0.86, 0.88], steps=5))
    owner, other = sweep.point("tra-0.86-0"), sweep.point("tra-0.88-0")
    simulate.run_train(owner, steps=5)
    simulate.run_alias(other, owner)
    clean(sweep)
    found = mlflow_runs(runs)
    alias = found["tra-0.88-0"]
    assert alias.data.tags[ALIAS] == "tra-0.86-0"
    assert "train tau=0.86" in alias.data.tags["mlflow.note.content"]
    assert found["tra-0.86-0"].data.tags[NAMES] == "train tau=0.88 tiny-s page=8 seed=0"
    assert {step for _, step in history(runs, "tra-0.88-0")} == {4}, "no second copy of its curves"
    reward = "reward/mean"
    assert alias.data.metrics[reward] == found["tra-0.86-0"].data.metrics[reward]


@pytest.mark.parametrize(
    ("kind", "cancelled", "status"),
    [
        ("error", False, "FAILED"),
        ("timeout", False, "FAILED"),
        ("interrupted", False, "KILLED"),
        ("error", True, "KILLED"),
        (None, False, "FAILED"),
    ],
)
def test_how_a_task_ended(
    runs: Path, sweep: SweepFolder, kind: Any, cancelled: bool, status: str
) -> None:
    folder = sweep.point(TRAIN)
    # Without a failure record the process is looked up: this one never lived.
    attempt = claim(folder, None if kind else {**simulate.DEAD, "host": socket.gethostname()})
    write_steps(attempt, range(3))
    if kind:
        attempt.write_failure(kind, "out of memory", "RuntimeError", "Traceback ...")
    if cancelled:
        Ledger(sweep.ledger_path).append("cancelled", point=TRAIN)
    clean(sweep)
    run = mlflow_runs(runs)[TRAIN]
    assert run.info.status == status
    said = f"{kind}: RuntimeError: out of memory" if kind else "lost: the worker vanished"
    assert run.data.tags[FAILURE] == said
    assert said.removeprefix("lost: ") in run.data.tags["sparrow.attempt.1"]
    assert run.data.metrics["reward/mean"] > 0


def test_a_task_that_recovers_loses_its_failure(runs: Path, sweep: SweepFolder) -> None:
    folder = sweep.point(TRAIN)
    claim(folder).write_failure("error", "no memory", "OSError")
    clean(sweep)
    before = mlflow_runs(runs)[TRAIN]
    assert before.info.status == "FAILED"
    simulate.run_train(folder, steps=3)
    clean(sweep)
    run = mlflow_runs(runs)[TRAIN]
    assert run.info.run_id == before.info.run_id, "nothing was logged before, so the run stays"
    assert run.info.status == "FINISHED"
    assert FAILURE not in run.data.tags
    assert run.data.tags["sparrow.attempts"] == "2"
    assert "no memory" in run.data.tags["sparrow.attempt.1"]
