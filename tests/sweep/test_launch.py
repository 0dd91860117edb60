"""The launcher, with real jobs of fake stages: order, throttle, failures, identical runs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.launch import Launcher
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.states import PointState, read_states
from sparrow_lab.sweep.summary import closing_lines, exit_code
from sparrow_lab.sweep.view import QuietView
from tests.sweep import fakes

MakeSweep = Callable[[Plan], SweepFolder]


class Recorder(QuietView):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str, str]] = []

    def note(self, kind: str, points: Sequence[PlannedPoint], reason: str = "") -> None:
        self.notes += [(kind, point.id, reason) for point in points]

    def kinds(self, point_id: str) -> list[str]:
        return [kind for kind, found, _ in self.notes if found == point_id]


def launch(
    sweep: SweepFolder, view: Recorder | None = None, **options: Any
) -> dict[str, PointState]:
    chosen = Options.from_json({"parallel": 2, "grace_s": 10, **options}, options.get("only"))
    return Launcher(sweep, chosen, view or Recorder(), fakes.STAGES).run()


def of_states(states: dict[str, PointState]) -> dict[str, str]:
    return {point_id: state.state for point_id, state in states.items()}


def spans(sweep: SweepFolder) -> list[tuple[float, float, str]]:
    """When each stage really ran, by its result."""
    results = [(p.id, p.read_result() or {}) for p in sweep.points()]
    return sorted((r["started"], r["finished"], i) for i, r in results if r["seconds"] > 0)


def test_a_sweep_runs_in_order_and_once(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8, 0.9], pause=0.2))
    view = Recorder()
    states = launch(sweep, view, parallel=4)  # room to spare: nothing may start twice
    assert set(of_states(states).values()) == {"done"}
    assert exit_code(states) == 0
    for point in sweep.read_plan().points:
        folder = sweep.point(point.id)
        assert fakes.starts(folder.path) == 1 and len(folder.attempts()) == 1
        assert view.kinds(point.id)[-1] == "done"
        started = (folder.read_result() or {})["started"]
        for needed in point.needs.values():
            assert (sweep.point(needed).read_result() or {})["finished"] <= started
    # a train point and its evaluation share a job: calibrate, 2 schedules, 2 trains
    assert len(list(sweep.jobs.iterdir())) == 5
    events = [e["event"] for e in Ledger(sweep.ledger_path).read() if e.get("point") == "7a000000"]
    assert events == ["submitted", "started", "finished"]


def test_no_more_workers_than_allowed(make_sweep: MakeSweep) -> None:
    points = tuple(fakes.make_point(f"{i:03d}aa", "calibrate", pause=0.3) for i in range(3))
    sweep = make_sweep(Plan("one", {}, points))
    launch(sweep, parallel=1)
    found = spans(sweep)
    assert len(found) == 3
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))


def test_threads_share_the_cores(make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrow_lab.sweep.workers.default_parallel", lambda threads: 4)
    points = tuple(
        fakes.make_point(f"{i:03d}aa", "calibrate", pause=0.5, threads=3) for i in range(2)
    )
    sweep = make_sweep(Plan("wide", {}, points))
    assert set(of_states(launch(sweep, parallel=None)).values()) == {"done"}
    first, second = spans(sweep)
    assert first[1] <= second[0]


def test_a_failure_holds_what_depends_on_it_and_nothing_else(make_sweep: MakeSweep) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.8, 0): {"fail_at": 2}})
    sweep = make_sweep(plan)
    view = Recorder()
    states = launch(sweep, view, retries=1)
    assert of_states(states) == {
        "c0000000": "done",
        "5c000000": "done",
        "5c000001": "done",
        "7a000000": "failed",
        "7a001000": "done",
        "e0000000": "held",
        "e0001000": "done",
    }
    assert states["7a000000"].reason == "ValueError: no luck at step 2"
    assert states["e0000000"].reason == "its train (7a000000) failed"
    assert view.kinds("7a000000") == ["started", "again", "started", "failed"]
    assert exit_code(states) == 1
    text = "\n".join(closing_lines("fake", states))
    assert "train model=tiny-s,tau=0.8,seed=0 (7a000000): ValueError: no luck at step 2" in text
    # the same command again: no new attempt, the same end
    again = launch(sweep, retries=1)
    assert of_states(again) == of_states(states)
    assert len(sweep.point("7a000000").attempts()) == 2
    assert of_states(read_states(sweep)) == of_states(states)


def test_a_crash_is_tried_again_and_goes_on_from_its_checkpoint(make_sweep: MakeSweep) -> None:
    plan = fakes.make_plan(taus=[0.9], of={(0.9, 0): {"fail_first": 1}})
    sweep = make_sweep(plan)
    assert set(of_states(launch(sweep, retries=1)).values()) == {"done"}
    assert [a.read_failure() is None for a in sweep.point("7a000000").attempts()] == [False, True]


def test_a_users_mistake_is_not_tried_again(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(Plan("one", {}, (fakes.make_point("aa00", "train", mistake=True),)))
    states = launch(sweep, retries=5)
    assert states["aa00"].state == "failed"
    assert states["aa00"].reason == "schedule.json: page size 16 against 32" or (
        states["aa00"].reason == "page size 16 against 32"
    )
    assert len(sweep.point("aa00").attempts()) == 1


def test_a_shared_failure_holds_the_rest_of_its_stage(make_sweep: MakeSweep) -> None:
    broken = [
        fakes.make_point(f"{i:03d}aa", "train", seed=i, always_fail="train") for i in range(6)
    ]
    other = fakes.make_point("ca11", "calibrate")
    sweep = make_sweep(Plan("bug", {}, (*broken, other)))
    states = launch(sweep, parallel=1, retries=0)
    found = of_states(states)
    assert list(found.values()).count("failed") == 3
    assert list(found.values()).count("held") == 3
    assert found["ca11"] == "done"
    held = next(s for s in states.values() if s.state == "held")
    assert held.reason == "3 points of this stage failed alike: RuntimeError: broken for seed #"
    assert of_states(read_states(sweep)) == found
    assert exit_code(states) == 1


def test_identical_runs_run_once(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8, 0.9, 0.95], digest="same", sleep=0.05))
    view = Recorder()
    states = launch(sweep, view, parallel=3)
    assert set(of_states(states).values()) == {"done"}
    trains = ["7a000000", "7a001000", "7a002000"]
    assert sum(fakes.starts(sweep.point(i).path) for i in trains) == 1
    owner = next(i for i in trains if states[i].same_as is None)
    assert {states[i].same_as for i in trains if i != owner} == {owner}
    assert sum(view.kinds(i) == ["same"] for i in trains) == 2
    assert sum(fakes.starts(sweep.point(f"e0{i[2:]}").path) for i in trains) == 1


def test_a_run_whose_owner_failed_is_held(make_sweep: MakeSweep) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], digest="same", fail_at=2)
    states = launch(make_sweep(plan), retries=0)
    trains = [states["7a000000"], states["7a001000"]]
    assert sorted(s.state for s in trains) == ["failed", "held"]
    held = next(s for s in trains if s.state == "held")
    assert "the same run as" in held.reason and "which failed" in held.reason


def test_the_owner_of_a_run_that_left_the_plan_is_replaced(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8, 0.9], digest="same"))
    launch(sweep, only=frozenset({"c0000000", "5c000000", "5c000001"}))
    from sparrow_lab.stages.identical import owner_of

    assert owner_of(sweep, sweep.read_plan().point("7a000000")) == "7a000000"
    smaller = tuple(p for p in sweep.read_plan().points if p.id not in ("7a000000", "e0000000"))
    sweep.write_plan(Plan("fake", {}, smaller))
    states = launch(sweep)
    assert set(of_states(states).values()) == {"done"}
    assert states["7a001000"].same_as is None


def test_only_the_first_points(make_sweep: MakeSweep) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1])
    sweep = make_sweep(plan)
    only = frozenset(queue.first_points(plan.points, 1))
    states = launch(sweep, only=only)
    assert set(states) == {"c0000000", "5c000000", "7a000000", "e0000000"}
    assert set(of_states(states).values()) == {"done"}
    rest = of_states(read_states(sweep))
    assert rest["7a001001"] == "planned" and list(rest.values()).count("done") == 4


def test_a_worker_that_overstays_is_a_failure(make_sweep: MakeSweep) -> None:
    point = fakes.make_point("aa00", "train", steps=1000, sleep=0.05)
    sweep = make_sweep(Plan("slow", {}, (point,)))
    begun = time.monotonic()
    states = launch(sweep, timeout_min=3 / 60, retries=0, grace_s=10)
    assert time.monotonic() - begun < 30
    assert states["aa00"].state == "failed"
    assert states["aa00"].reason == "ran longer than timeout_min = 0.05"
    # it was asked first: its last step was saved
    assert list(sweep.point("aa00").attempts()[0].checkpoints.iterdir())


def test_the_points_threads_reach_the_worker(make_sweep: MakeSweep, tmp_path: Path) -> None:
    point = fakes.make_point("aa00", "train", threads=3, tell=True)
    sweep = make_sweep(Plan("threads", {}, (point,)))
    launch(sweep)
    assert "OMP_NUM_THREADS=3" in sweep.point("aa00").attempts()[0].log_path.read_text()
