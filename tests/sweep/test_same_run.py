"""On one machine too a point says whose run it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.runs.process import this_process
from sparrow_lab.stages.identical import owner_of
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.launch import Launcher
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.states import PointState, read_states
from sparrow_lab.sweep.view import QuietView
from tests.sweep import fakes

MakeSweep = Callable[[Plan], SweepFolder]
OWNER, TWIN = "7a000000", "7a001000"
SCHEDULED = frozenset({"c0000000", "5c000000", "5c000001"})


@pytest.fixture
def sweep(make_sweep: MakeSweep) -> SweepFolder:
    """Two levels of tau that came out as one schedule; the first has claimed the run."""
    sweep = make_sweep(fakes.make_plan(taus=[0.8, 0.9], digest="same"))
    Launcher(sweep, Options(only=SCHEDULED), QuietView(), fakes.STAGES).run()
    assert read_states(sweep)[TWIN].reason == ""  # nobody has claimed it
    assert owner_of(sweep, sweep.read_plan().point(OWNER)) == OWNER
    return sweep


def of(sweep: SweepFolder, point_id: str) -> tuple[str, str]:
    state = read_states(sweep)[point_id]
    return state.state, state.reason


def test_a_twin_waits_for_the_one_that_has_claimed_its_run(sweep: SweepFolder) -> None:
    assert of(sweep, OWNER) == ("planned", "")
    sweep.point(OWNER).new_attempt(this_process())
    assert of(sweep, OWNER) == ("running", "")
    assert of(sweep, TWIN) == ("planned", f"the same run as {OWNER}")
    assert of(sweep, "e0001000") == ("planned", f"its train is the same run as {OWNER}")
    assert read_states(sweep)[TWIN].twin_of == OWNER


def test_a_twin_is_held_by_a_run_that_failed(sweep: SweepFolder) -> None:
    sweep.point(OWNER).new_attempt(this_process()).write_failure("error", "no luck")
    assert of(sweep, TWIN) == ("held", f"the same run as {OWNER}, which failed")
    assert of(sweep, "e0001000")[0] == "held"


def test_a_twin_says_that_it_will_run_itself(sweep: SweepFolder) -> None:
    Ledger(sweep.ledger_path).append("cancelled", point=OWNER)
    said = f"the same run as {OWNER}, which was cancelled; the same command runs this one"
    assert of(sweep, TWIN) == ("planned", said)
    rest = tuple(p for p in sweep.read_plan().points if p.id not in (OWNER, "e0000000"))
    sweep.write_plan(Plan("fake", {}, rest))
    said = f"the same run as {OWNER}, which has left the file; the same command runs this one"
    assert of(sweep, TWIN) == ("planned", said)


class Looking(QuietView):
    """Reads the states, as `status` would, at every turn of the launcher."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def update(
        self,
        sweep: SweepFolder,
        states: Mapping[str, PointState],
        jobs: Sequence[Job],
        options: Options,
    ) -> None:
        self.seen |= {s.reason for s in read_states(sweep).values() if s.twin_of}


def test_it_is_said_while_the_run_is_on(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8, 0.9], digest="same", sleep=0.2))
    view = Looking()
    states = Launcher(sweep, Options(parallel=2), view, fakes.STAGES).run()
    assert {s.state for s in states.values()} == {"done"}
    owner = next(i for i in (OWNER, TWIN) if states[i].same_as is None)
    said = {f"the same run as {owner}", f"its train is the same run as {owner}"}
    assert said <= view.seen
    assert view.seen - said <= {f"the same run as {owner.replace('7a', 'e0')}"}
