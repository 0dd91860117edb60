"""One behaviour everywhere: a sweep on this machine, on a pretended and on a real Slurm."""

from __future__ import annotations

import os
import signal

from rich.console import Console

from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep import decide
from tests.contracts import truth
from tests.contracts.backends import Backend, wait_until
from tests.sweep import fakes


def trains(count: int, **settings: object) -> Plan:
    """Training runs that need nothing."""
    points = [fakes.make_point(f"7a0{i:02d}", "train", seed=i, **settings) for i in range(count)]
    return Plan("fake", {}, tuple(points))


def test_every_point_is_done_once_and_after_what_it_needs(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], seeds=(0, 1))
    assert set(backend.run(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())


def test_a_finished_sweep_says_so_and_starts_nothing(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8])
    backend.run(plan)
    assert backend.submit(plan) == 0
    assert backend.queue() == []
    truth.assert_once(backend.sweep())


def test_a_failed_point_holds_what_needs_it_and_nothing_else(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.9, 0): {"fail_at": 3}})
    backend.run(plan, retries=0)
    states = backend.states()
    failed, held = states["7a001000"], states["e0001000"]
    assert (failed.state, failed.reason) == ("failed", "ValueError: no luck at step 3")
    assert held.state == "held" and held.reason.startswith("its train (7a001000)")
    others = {i: s.state for i, s in states.items() if i not in ("7a001000", "e0001000")}
    assert set(others.values()) == {"done"}
    # the same command leaves a failed point alone
    assert backend.run(plan, retries=0)["7a001000"] == "failed"
    assert len(backend.sweep().point("7a001000").attempts()) == 1


def test_a_broken_first_stage_leaves_nothing_waiting(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], always_fail="calibrate")
    states = backend.run(plan, retries=0)
    assert states.pop("c0000000") == "failed"
    assert set(states.values()) == {"held"}
    reasons = {s.reason for i, s in backend.states().items() if i != "c0000000"}
    assert all(reasons)


def test_a_failure_is_tried_again_as_often_as_asked(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8], of={(0.8, 0): {"fail_first": 1}})
    assert set(backend.run(plan, retries=1).values()) == {"done"}
    assert truth.kind_of(backend.sweep(), "7a000000") == "error"
    assert len(backend.sweep().point("7a000000").attempts()) == 2
    truth.assert_all_done(backend.sweep())


def test_what_was_forgiven_runs_again_with_what_it_held(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.9, 0): {"fail_first": 1}})
    assert backend.run(plan, retries=0)["7a001000"] == "failed"
    truth.forgive(backend.sweep(), "7a001000")
    assert set(backend.run(plan, retries=0).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    assert fakes.starts(backend.sweep().point("7a000000").path) == 1


def test_a_longer_axis_adds_only_the_new_points(backend: Backend) -> None:
    backend.run(fakes.make_plan(taus=[0.8]))
    states = backend.run(fakes.make_plan(taus=[0.8, 0.9]))
    assert len(states) == 7 and set(states.values()) == {"done"}
    assert "4 kept, 3 new" in backend.said[-1]
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())


def test_two_at_the_same_time_run_no_point_twice(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], pause=0.3)
    both = [backend.start(plan), backend.start(plan)]
    codes = [backend.ended(process) for process in both]
    assert 0 in codes
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())


def test_an_interrupted_point_goes_on_where_it_was(backend: Backend) -> None:
    plan = trains(2, steps=80, every=1000, sleep=0.05, children=2)
    process = backend.start(plan)
    backend.until_step("7a000", 10)
    backend.interrupt("7a000")
    backend.ended(process)
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    assert truth.kind_of(backend.sweep(), "7a000") == "interrupted"
    # there is no checkpoint but the one that the signal made
    assert truth.first_step(backend.sweep(), "7a000", attempt=2) > 10
    assert fakes.starts(backend.sweep().point("7a001").path) == 1
    truth.assert_alone(backend.sweep(), "7a000")


def test_a_killed_worker_goes_on_from_its_last_checkpoint(backend: Backend) -> None:
    plan = trains(1, steps=60, every=5, sleep=0.05, children=2)
    process = backend.start(plan, retries=1)
    backend.until_step("7a000", 12)
    os.kill(backend.worker("7a000"), signal.SIGKILL)
    backend.ended(process)
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    assert truth.kind_of(backend.sweep(), "7a000") == "lost"
    begun = truth.first_step(backend.sweep(), "7a000", attempt=2)
    assert begun >= 11 and begun % 5 == 1
    truth.assert_alone(backend.sweep(), "7a000")


def test_one_run_with_several_names_runs_once(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], digest="the same schedule")
    assert set(backend.run(plan).values()) == {"done"}
    results = [backend.sweep().point(i).read_result() or {} for i in ("7a000000", "7a001000")]
    assert sorted(r["alias_of"] is None for r in results) == [False, True]
    begun = [fakes.starts(backend.sweep().point(i).path) for i in ("7a000000", "7a001000")]
    assert sum(begun) == 1


def test_another_name_of_a_run_that_is_long_done_is_finished_with_its_evaluation(
    backend: Backend,
) -> None:
    backend.run(fakes.make_plan(taus=[0.8], digest="the same schedule"))
    states = backend.run(fakes.make_plan(taus=[0.8, 0.9], digest="the same schedule"))
    assert len(states) == 7 and set(states.values()) == {"done"}
    evaluation = backend.sweep().point("e0001000").read_result() or {}
    assert evaluation["alias_of"] == "e0000000"
    assert fakes.starts(backend.sweep().point("7a001000").path) == 0


def test_a_cancelled_point_stays_cancelled(backend: Backend) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.9, 0): {"steps": 2000, "sleep": 0.05}})
    process = backend.start(plan)
    backend.until_step("7a001000", 5)
    decide.cancel(backend.sweep(), ["tau=0.9"], Console(quiet=True), grace_s=20)
    backend.ended(process)
    states = backend.wait(plan)
    assert states["7a001000"] == "cancelled" and states["7a000000"] == "done"
    assert backend.run(plan)["7a001000"] == "cancelled"
    assert fakes.starts(backend.sweep().point("7a001000").path) == 1


def test_states_on_the_way(backend: Backend) -> None:
    plan = trains(1, steps=40, every=1000, sleep=0.1)
    backend.start(plan)
    seen: list[str] = []

    def over() -> bool:
        state = backend.states()["7a000"].state
        seen.extend([state] if seen[-1:] != [state] else [])
        return state == "done"

    wait_until(lambda: (backend.sweep().path / "plan.json").exists())
    wait_until(over)
    backend.wait(plan)
    order = ["planned", "submitted", "pending", "running", "done"]
    assert seen == [state for state in order if state in seen] and "running" in seen
