"""Jobs that are interrupted, in every way that Slurm has, end as one that was not."""

from __future__ import annotations

import os
import signal

import pytest
from rich.console import Console

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.decide import cancel
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm import squeue
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.slurm.submit import submit
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes
from tests.sweep.slurm.conftest import Handed, HandIn
from tests.sweep.watching import step_of, wait_until

STEPS = 60


def started(hand_in: HandIn, steps: int = STEPS, at: int = 5, **site: object) -> Handed:
    """One training run on the cluster, some steps into it."""
    every = site.pop("every", 1000)
    point = fakes.make_point("aa00", "train", steps=steps, sleep=0.05, every=every)
    handed = hand_in(Plan("one", {}, (point,)), **site)
    handed.submit()
    wait_until(lambda: step_of(handed.sweep, "aa00") >= at, 60)
    return handed


def kinds(handed: Handed) -> list[str]:
    failures = (a.read_failure() or {} for a in handed.sweep.point("aa00").attempts())
    return [str(f.get("kind", "")) for f in failures]


def assert_whole(handed: Handed, steps: int = STEPS) -> None:
    """Done, true, and no step was taken twice by the attempts that saved."""
    assert handed.over() == {"aa00": "done"}
    result = handed.sweep.point("aa00").read_result() or {}
    assert result["metrics"]["value"] == fakes.chain_end(steps, 0)


@pytest.mark.parametrize("grace", [0.0, 20.0])
def test_a_preempted_job_goes_on_where_it_was(
    fake_slurm: FakeSlurm, hand_in: HandIn, grace: float
) -> None:
    handed = started(hand_in)
    (queued,) = read_queue().elements.values()
    fake_slurm.preempt(queued.job, grace_s=grace)
    wait_until(lambda: kinds(handed)[:1] == ["interrupted"], 30)
    assert handed.states()["aa00"] in ("pending", "running")
    assert_whole(handed)
    assert kinds(handed) == ["interrupted", ""]
    attempts = handed.sweep.point("aa00").attempts()
    assert [(a.read_claim() or {})["slurm"]["restart"] for a in attempts] == [0, 1]
    resumed = attempts[1].log_path.read_text()
    assert "attempt 2" in resumed


def test_a_time_limit_is_no_end(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = started(hand_in)
    (queued,) = read_queue().elements.values()
    fake_slurm.limit(queued.job, 8.0)  # USR2 comes `grace` seconds before: at once
    wait_until(lambda: kinds(handed)[:1] == ["interrupted"], 30)
    assert_whole(handed)


def test_a_requeue_by_hand_goes_on(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = started(hand_in)
    (queued,) = read_queue().elements.values()
    fake_slurm.requeue(queued.job)
    wait_until(lambda: len(kinds(handed)) == 2, 60)
    assert_whole(handed)
    assert kinds(handed) == ["interrupted", ""]


def test_where_preemption_cancels_the_rest_is_submitted_anew(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in, on_preempt="resubmit")
    (queued,) = read_queue().elements.values()
    fake_slurm.preempt(queued.job, grace_s=20.0, evict=True)
    wait_until(lambda: len(kinds(handed)) == 2, 60)
    assert_whole(handed)
    assert len({t["job"] for t in fake_slurm.tasks()}) == 2
    # nobody else took it up meanwhile
    assert not handed.submit().arrays


def test_a_worker_that_is_killed_is_started_again_in_its_job(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in, every=4, at=9)
    claim = handed.sweep.point("aa00").attempts()[-1].read_claim() or {}
    os.kill(int(claim["pid"]), signal.SIGKILL)
    assert_whole(handed)
    assert kinds(handed) == ["lost", ""]
    first = handed.sweep.point("aa00").attempts()[0].read_failure() or {}
    assert first["message"] == "the worker was killed by signal 9 (out of memory?)"


def test_a_job_that_is_killed_without_a_word_is_lost_and_goes_on_from_its_checkpoint(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in, every=4, at=9)
    (queued,) = read_queue().elements.values()
    fake_slurm.kill(queued.job)
    wait_until(lambda: not read_queue().elements, 30)
    state = read_states(handed.sweep)["aa00"]
    assert (state.state, state.reason) == ("lost", "its job ended without a word")
    assert handed.submit().points == 1
    assert_whole(handed)
    steps = handed.sweep.point("aa00").attempts()[1].events_path
    assert '"step": 1,' not in (steps.read_text() if steps.exists() else "")


def test_cancelled_by_hand_saves_and_stays_cancelled(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in)
    with Console(file=open(os.devnull, "w"), record=True, width=200) as console:
        assert cancel(handed.sweep, [], console) == 0
    assert "0 jobs cancelled, 1 asked to save and leave" in console.export_text()
    wait_until(lambda: not read_queue().elements, 30)
    assert handed.states() == {"aa00": "cancelled"}
    assert list(handed.sweep.point("aa00").attempts()[0].checkpoints.iterdir())
    assert not handed.submit().arrays
    Ledger(handed.sweep.ledger_path).append("retry", point="aa00", after=1)
    assert handed.submit().points == 1
    assert_whole(handed)


def test_scancel_by_hand_saves_and_the_same_command_goes_on(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in)
    (queued,) = read_queue().elements.values()
    squeue.cancel([queued.job])
    wait_until(lambda: not read_queue().elements, 30)
    assert handed.states() == {"aa00": "interrupted"}
    assert handed.submit().points == 1
    assert_whole(handed)


def test_two_copies_after_a_lost_node_and_one_result(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = started(hand_in, every=4, at=9)
    (queued,) = read_queue().elements.values()
    fake_slurm.lose_node(queued.job)
    wait_until(lambda: len(kinds(handed)) == 2, 60)
    assert_whole(handed)
    assert (handed.sweep.point("aa00").read_result() or {})["attempt"] == 2
    wait_until(lambda: kinds(handed)[0] == "interrupted", 30)
    first = handed.sweep.point("aa00").attempts()[0].read_failure() or {}
    assert first["message"] == "a later attempt has claimed this point"


def test_a_worker_that_hears_nothing_is_killed_within_the_grace(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    point = fakes.make_point("aa00", "train", steps=5, deaf=30)
    handed = hand_in(Plan("deaf", {}, (point,)))
    handed.submit()
    wait_until(lambda: handed.sweep.point("aa00").attempts(), 60)
    (queued,) = read_queue().elements.values()
    fake_slurm.preempt(queued.job, grace_s=20.0)
    wait_until(lambda: kinds(handed)[:1] == ["interrupted"], 15)
    first = handed.sweep.point("aa00").attempts()[0].read_failure() or {}
    assert "did not save within the grace time" in first["message"]


def test_an_evaluation_that_is_interrupted_goes_on_and_its_training_is_not_repeated(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    trained = fakes.make_point("aa00", "train", steps=3)
    evaluated = fakes.make_point("ee00", "evaluate", {"train": "aa00"})
    handed = hand_in(Plan("two", {}, (trained, evaluated)))
    stages = {**fakes.STAGES, "evaluate": "tests.sweep.slurm.odd:evaluate_slowly"}
    submit(handed.sweep, handed.site, Options(), handed.said.append, stages)
    wait_until(lambda: handed.sweep.point("ee00").attempts(), 60)
    (queued,) = read_queue().elements.values()
    assert handed.states() == {"aa00": "done", "ee00": "running"}
    fake_slurm.preempt(queued.job, grace_s=20.0)
    assert handed.over() == {"aa00": "done", "ee00": "done"}
    assert len(handed.sweep.point("ee00").attempts()) == 2
    assert fakes.starts(handed.sweep.point("aa00").path) == 1
