"""What must hold of a sweep's files, wherever it ran and whatever happened to it."""

from __future__ import annotations

import psutil

from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from tests.sweep import fakes


def assert_all_done(sweep: SweepFolder) -> None:
    """Every point has one true result: that of a run which nobody disturbed."""
    for point in sweep.read_plan().points:
        folder = sweep.point(point.id)
        result = folder.read_result()
        assert result is not None, f"{point.id} has no result"
        for needed in point.needs.values():
            before = sweep.point(needed).read_result()
            assert before is not None and before["finished"] <= result["finished"]
        if point.stage == "train" and result["alias_of"] is None:
            assert result["metrics"]["value"] == fakes.expected(point)
            assert_events_whole(sweep, point.id)
        if point.stage == "evaluate" and result["alias_of"] is None:
            trained = sweep.point(point.needs["train"]).read_result()
            assert trained is not None
            assert result["metrics"]["evaluate/reward"] == 2 * trained["metrics"]["value"]


def assert_events_whole(sweep: SweepFolder, point_id: str) -> None:
    """Readers see each step of a training run once, with the value of an undisturbed run."""
    point = sweep.point(point_id).read_point()
    rows = read_events(sweep.point(point_id)).rows
    assert [row[0] for row in rows] == list(range(1, point.config["train"]["steps"] + 1))
    value = 1
    for step, _, _, metrics in rows:
        value = fakes.following(value, step, point.config["seed"])
        assert metrics["reward/mean"] == value


def assert_once(sweep: SweepFolder) -> None:
    """Every point that ran was begun once."""
    for point in sweep.points():
        result = point.read_result()
        once = 0 if result and result["alias_of"] else 1
        ends = [attempt.read_failure() for attempt in point.attempts()]
        assert fakes.starts(point.path) == once, f"{point.id}: {ends}"
        assert len(ends) == once, f"{point.id}: {ends}"


def first_step(sweep: SweepFolder, point_id: str, attempt: int) -> int:
    """The first step that an attempt made."""
    rows = read_events(sweep.point(point_id)).rows
    return min(row[0] for row in rows if row[2] == attempt)


def kind_of(sweep: SweepFolder, point_id: str, attempt: int = 1) -> str:
    """How an attempt ended, by its own record; empty when it ended well."""
    failure = sweep.point(point_id).attempts()[attempt - 1].read_failure() or {}
    return str(failure.get("kind", ""))


def forgive(sweep: SweepFolder, point_id: str) -> None:
    """What `retry` writes before it runs the sweep again."""
    attempts = sweep.point(point_id).attempts()
    Ledger(sweep.ledger_path).append("retry", point=point_id, after=attempts[-1].number)


def assert_alone(sweep: SweepFolder, point_id: str) -> None:
    """None of the processes that a point's workers had started lives."""
    pids = fakes.children(sweep.point(point_id).path)
    assert pids
    alive = [pid for pid in pids if psutil.pid_exists(pid)]
    assert [p for p in alive if psutil.Process(p).status() != psutil.STATUS_ZOMBIE] == []
