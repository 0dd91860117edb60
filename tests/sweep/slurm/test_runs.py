"""Whole sweeps on the pretended cluster: order, canary, failures, twins, extension."""

from __future__ import annotations

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes
from tests.sweep.slurm.conftest import HandIn


def assert_true(sweep: SweepFolder) -> None:
    """Every train point has the value of an undisturbed run, and every point one result."""
    for point in sweep.read_plan().points:
        result = sweep.point(point.id).read_result()
        assert result is not None, point.id
        if point.stage == "train" and not result["alias_of"]:
            assert result["metrics"]["value"] == fakes.expected(point)


def test_a_sweep_runs_in_order_and_once(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1]))
    done = handed.submit()
    assert done.points == 11 and len(done.arrays) == 6
    assert set(handed.over().values()) == {"done"}
    assert_true(handed.sweep)
    for point in handed.sweep.read_plan().points:
        folder = handed.sweep.point(point.id)
        assert fakes.starts(folder.path) == 1 and len(folder.attempts()) == 1
        claim = folder.attempts()[0].read_claim() or {}
        assert claim["slurm"]["restart"] == 0
    # the nodes wrote nothing into the ledger
    events = {e["event"] for e in Ledger(handed.sweep.ledger_path).read()}
    assert events == {"opened", "submitting", "submitted"}
    assert not handed.submit().arrays


def test_a_failure_holds_what_needs_it_and_nothing_else(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.9, 0): {"fail_at": 2}})
    handed = hand_in(plan)
    handed.submit()
    states = handed.over()
    assert states["7a001000"] == "failed" and states["e0001000"] == "held"
    assert set(states.values()) == {"done", "failed", "held"}
    assert handed.reasons()["7a001000"] == "ValueError: no luck at step 2"
    assert handed.reasons()["e0001000"] == "its train (7a001000) failed"
    # tried again once, in the same job; the same command leaves it alone
    assert len(handed.sweep.point("7a001000").attempts()) == 2
    assert not handed.submit().arrays


def test_a_canary_that_fails_holds_its_stage_and_what_needs_it(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1], always_fail="train")
    handed = hand_in(plan)
    handed.submit(retries=0)
    states = handed.over()
    assert states["7a000000"] == "failed"
    assert [states[i] for i in ("7a000001", "7a001000", "7a001001")] == ["held"] * 3
    why = "the first point of its stage (7a000000) failed: RuntimeError: broken for seed 0"
    assert handed.reasons()["7a001001"] == why
    assert fakes.starts(handed.sweep.point("7a001001").path) == 0


def test_alike_failures_hold_the_rest_of_a_stage(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    points = [
        fakes.make_point(f"aa{i:02d}", "train", seed=i, always_fail="train") for i in range(8)
    ]
    handed = hand_in(Plan("alike", {}, tuple(points)), throttle=1)
    # the first is cancelled by hand, so that it is no canary
    Ledger(handed.sweep.ledger_path).append("cancelled", point="aa00")
    handed.submit(retries=0, only=frozenset(p.id for p in points[1:]))
    states = handed.over()
    counts = {s: list(states.values()).count(s) for s in set(states.values())}
    # the first of the others is the canary: it fails, and all else is held for it
    assert counts == {"cancelled": 1, "failed": 1, "held": 6}


@pytest.mark.parametrize("pause", [0.0, 0.7])
def test_runs_that_come_out_the_same_are_run_once(
    fake_slurm: FakeSlurm, hand_in: HandIn, pause: float
) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.85, 0.9], seeds=[0, 1], digest="same", pause=pause)
    handed = hand_in(plan)
    handed.submit()
    assert set(handed.over().values()) == {"done"}
    trains = [p for p in plan.points if p.stage == "train"]
    ran = [p for p in trains if fakes.starts(handed.sweep.point(p.id).path)]
    assert len(ran) == 2  # one a seed
    states = read_states(handed.sweep)
    same = [s.same_as for i, s in states.items() if i.startswith(("7a", "e0")) and s.same_as]
    assert len(same) == 8
    assert_true(handed.sweep)


def test_an_extended_axis_adds_only_the_new_points(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(fakes.make_plan(taus=[0.8], seeds=[0]))
    handed.submit()
    handed.over()
    handed.sweep.write_plan(fakes.make_plan(taus=[0.8], seeds=[0, 1]))
    done = handed.submit()
    assert done.points == 2
    assert handed.over() == dict.fromkeys(handed.states(), "done")
    assert fakes.starts(handed.sweep.point("7a000000").path) == 1


def test_more_points_than_the_array_holds_and_a_throttle(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    points = [fakes.make_point(f"aa{i:02d}", "train", seed=i, pause=0.3) for i in range(7)]
    handed = hand_in(Plan("many", {}, tuple(points)), array_cap=3, throttle=2)
    handed.submit()
    assert set(handed.over().values()) == {"done"}
    results = [handed.sweep.point(p.id).read_result() or {} for p in points]
    moments = sorted([(r["started"], 1) for r in results] + [(r["finished"], -1) for r in results])
    running, most = 0, 0
    for _, change in moments:
        running += change
        most = max(most, running)
    assert most <= 2
    assert max(int(t["idx"]) for t in fake_slurm.tasks()) == 2


@pytest.mark.parametrize("field", ["partition", "account"])
def test_a_refused_chunk_names_the_line_and_what_was_submitted(
    fake_slurm: FakeSlurm, hand_in: HandIn, field: str
) -> None:
    text = {
        "partition": "sbatch: error: invalid partition specified: gpu\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified",
        "account": "sbatch: error: Batch job submission failed: Invalid account or "
        "account/partition combination specified",
    }[field]
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9]), **{field: "main"})
    fake_slurm.fail("sbatch", text, skip=1)
    fake_slurm.store.set("slots", 0)
    with pytest.raises(UserError) as error:
        handed.submit()
    assert str(error.value.where).endswith(f"site.yaml:6:{len(field) + 3}")
    assert error.value.message.startswith(f"{field}: sbatch says '")
    assert "submitted before it: 1 point in 1 array" in error.value.message
    assert "6 points stay planned" in error.value.message
    assert sorted(set(handed.states().values())) == ["pending", "planned"]


def test_an_answer_that_is_lost_does_not_submit_twice(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow_lab.sweep.slurm.send.BACKOFF_S", (0.1, 0.1))
    busy = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
    fake_slurm.fail("sbatch", busy, done=True)
    fake_slurm.fail("sbatch", busy, skip=1)
    handed = hand_in(fakes.make_plan(taus=[0.8]))
    done = handed.submit()
    assert done.points == 4 and len({job for job, _ in done.arrays}) == 3
    assert sum("trying again" in line for line in handed.said) == 2
    assert set(handed.over().values()) == {"done"}
    assert_true(handed.sweep)


def test_no_accounting_changes_nothing(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    fake_slurm.no_accounting()
    handed = hand_in(fakes.make_plan(taus=[0.8]))
    handed.submit()
    assert set(handed.over().values()) == {"done"}
