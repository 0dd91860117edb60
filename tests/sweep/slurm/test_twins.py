"""Another name of a run that another job is at: why it waits, and what a cancellation does."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.decide import cancel
from sparrow_lab.sweep.slurm import todo
from sparrow_lab.sweep.slurm.twins import note_twin, read_twin
from sparrow_lab.sweep.states import read_states
from sparrow_lab.sweep.status import Status
from tests.sweep import fakes
from tests.sweep.slurm.conftest import Handed, HandIn
from tests.sweep.watching import wait_until

PAIR = {"7a000000": "7a001000", "7a001000": "7a000000"}


def said_by(handed: Handed) -> str:
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(Status(handed.sweep).table())
    return console.export_text()


def test_a_twin_says_whose_run_it_waits_for_and_runs_itself_when_that_is_cancelled(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(todo, "need_canary", lambda _: set())
    plan = fakes.make_plan(taus=[0.8, 0.9], digest="same", steps=9000, sleep=0.05)
    handed = hand_in(plan)
    handed.submit()

    def found() -> str:
        return next((i for i in PAIR if read_states(handed.sweep)[i].twin_of), "")

    wait_until(found, 120)
    twin = found()
    owner = PAIR[twin]
    handed.wait(**{owner: "running", twin: "submitted"})
    assert handed.reasons()[twin] == f"the same run as {owner}"
    evaluation = twin.replace("7a", "e0")
    assert handed.reasons()[evaluation] == f"its train is the same run as {owner}"
    assert f"({twin}): the same run as {owner}" in said_by(handed)

    console = Console(record=True, width=200, file=io.StringIO())
    cancel(handed.sweep, [f"id={owner}"], console, grace_s=20)
    assert "1 other name of the same runs: the same command runs them" in console.export_text()
    handed.wait(**{owner: "cancelled"})
    state = read_states(handed.sweep)[twin]
    assert (state.state, state.twin_of) == ("planned", owner)
    assert f"the same run as {owner}, which was cancelled" in state.reason
    handed.submit()
    handed.wait(**{owner: "cancelled", twin: "running"})
    assert read_twin(handed.sweep, twin) is None
    cancel(handed.sweep, [], Console(quiet=True), grace_s=20)
    assert set(handed.over().values()) == {"done", "cancelled"}


def test_a_twin_whose_owner_has_left_the_file_is_planned(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    """Nobody has it, so that nothing waits for it for ever."""
    fake_slurm.store.set("slots", 0)
    twin = fakes.make_point("7a001000", "train")
    handed = hand_in(Plan("fake", {}, (twin,)))
    job = handed.submit().arrays[0][0]
    note_twin(handed.sweep, twin, "7a000000")
    assert handed.states() == {"7a001000": "pending"}
    fake_slurm.set_state(job, "COMPLETED")
    assert handed.states() == {"7a001000": "planned"}
    assert handed.reasons()["7a001000"].startswith("the same run as 7a000000, which has left")
    assert handed.submit().points == 1
