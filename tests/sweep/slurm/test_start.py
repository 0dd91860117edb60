"""Jobs that end before their workers have begun: the cause, the rest, and the next command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from sparrow_lab.config.site import load_site
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.search.cluster_round import Rounds
from sparrow_lab.sweep.slurm import start, todo
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.states import PointState
from sparrow_lab.sweep.status import Status
from tests.sweep import fakes
from tests.sweep.slurm.conftest import Handed, HandIn
from tests.sweep.watching import wait_until

BROKEN = "['echo no module cuda/99', 'exit 7']"
WHY = "its job ended before its worker had begun (exit code 7): no module cuda/99"
HELD = f"jobs of this set-up end before their workers begin; {WHY}"


def trains(count: int) -> Plan:
    points = [fakes.make_point(f"aa{i:02d}", "train", seed=i) for i in range(count)]
    return Plan("early", {}, tuple(points))


def ran_setup(handed: Handed) -> int:
    """How many jobs came to the lines of `setup:`."""
    logs = handed.sweep.path.glob("submitted/*/*.log")
    return sum("no module" in log.read_text() for log in logs)


def test_a_first_job_that_cannot_begin_holds_the_rest_with_its_cause(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = hand_in(trains(6), setup=BROKEN)
    handed.submit()
    states = handed.over()
    assert states.pop("aa00") == "failed" and set(states.values()) == {"held"}
    reasons = handed.reasons()
    assert reasons.pop("aa00") == WHY and set(reasons.values()) == {HELD}
    said = ["'sparrow-lab retry early --failed' tries failed points again"]
    assert Status(handed.sweep).next_steps() == said
    assert ran_setup(handed) == 1
    # status and its like have written nothing
    assert handed.sweep.point("aa00").attempts() == []


def test_the_same_command_says_what_it_tries_again_and_how_often_it_does(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = hand_in(trains(3), setup=BROKEN)
    handed.submit(retries=1)
    handed.over()
    handed.submit(retries=1)
    assert f"trying again: 1 failed: {WHY}" in handed.said
    handed.over()
    assert ran_setup(handed) == 2
    failure = handed.sweep.point("aa00").attempts()[0].read_failure() or {}
    assert failure["message"] == WHY and "no module cuda/99" in failure["traceback"]
    # the first has used up its tries: the next one goes alone
    handed.said.clear()
    handed.submit(retries=1)
    assert handed.said == ["left alone: 1 failed"]
    states = handed.over()
    assert states == {"aa00": "failed", "aa01": "failed", "aa02": "held"}
    # a set-up that works again is no other's fault
    handed.site = load_site(mended(handed))
    handed.submit(retries=1)
    assert handed.over() == {"aa00": "failed", "aa01": "done", "aa02": "done"}


@pytest.mark.parametrize(
    "before", ["runs.attempt.AttemptFolder.write_failure", "sweep.slurm.start.written_down"]
)
def test_a_command_killed_over_such_a_job_is_gone_on_with(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """It counts as one try, and the next death of the same point as another."""
    handed = hand_in(trains(1), setup=BROKEN)
    handed.submit(retries=1)
    handed.over()
    with monkeypatch.context() as patch:
        patch.setattr(f"sparrow_lab.{before}", killed)
        with pytest.raises(Killed):
            handed.submit(retries=1)
    assert handed.reasons() == {"aa00": WHY}
    assert len(handed.submit(retries=1).arrays) == 1  # one try is left
    (attempt,) = handed.sweep.point("aa00").attempts()
    assert (attempt.read_failure() or {})["message"] == WHY
    handed.over()
    assert not handed.submit(retries=1).arrays
    attempts = handed.sweep.point("aa00").attempts()
    assert [(a.read_failure() or {}).get("type") for a in attempts] == ["StartFailed"] * 2


class Killed(BaseException):
    """Stands for SIGKILL at that instant."""


def killed(*_: object, **__: object) -> None:
    raise Killed


def mended(handed: Handed) -> Path:
    file = Path(handed.site._file)
    file.write_text(file.read_text().replace(BROKEN, "[]"))
    return file


def test_what_needs_one_that_could_not_begin_does_not_begin_either(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9]), setup=BROKEN)
    handed.submit()
    states = handed.over()
    assert states.pop("c0000000") == "failed" and set(states.values()) == {"held"}
    assert handed.reasons()["5c000000"] == "its calibrate (c0000000) failed"
    assert ran_setup(handed) == 1


def test_without_a_canary_three_of_them_hold_the_rest(
    fake_slurm: FakeSlurm, hand_in: HandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_slurm.store.set("slots", 1)
    monkeypatch.setattr(todo, "need_canary", lambda _: set())
    handed = hand_in(trains(8), setup=BROKEN)
    handed.submit()
    states = handed.over()
    assert sorted(states.values()) == ["failed"] * 3 + ["held"] * 5
    assert ran_setup(handed) == 3


def test_a_worker_that_once_began_lets_the_others_begin(
    fake_slurm: FakeSlurm, hand_in: HandIn, tmp_path: Path
) -> None:
    """One node of several is broken: that is no fault of the set-up."""
    broken = f"['[ $SLURM_ARRAY_TASK_ID != 1 ] || [ ! -e {tmp_path}/first ] || exit 7',"
    broken += f" 'touch {tmp_path}/first']"
    handed = hand_in(trains(5), setup=broken)
    handed.submit()
    states = handed.over()
    assert states.pop("aa02") == "failed" and set(states.values()) == {"done"}
    assert handed.reasons()["aa02"].endswith("(exit code 7): it printed nothing")


def test_a_job_that_is_cancelled_while_it_starts_is_no_fault_of_the_set_up(
    fake_slurm: FakeSlurm, hand_in: HandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrow_lab.sweep.slurm.states.SETTLING_S", 0.0)
    handed = hand_in(trains(1), setup=f"['touch {tmp_path}/there', 'sleep 600']")
    job = handed.submit().arrays[0][0]
    wait_until(lambda: (tmp_path / "there").exists())
    subprocess.run(["scancel", job], check=True)
    assert handed.over() == {"aa00": "lost"}
    said = ["the same 'sparrow-lab sweep' command tries lost points again"]
    assert Status(handed.sweep).next_steps() == said
    (key,) = start.keys(handed.sweep)
    assert start.deaths(handed.sweep, key) == []


def test_a_trap_of_the_set_up_stays(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(trains(1), setup='["set -eu", "trap \'echo good bye\' EXIT"]')
    handed.submit()
    assert handed.over() == {"aa00": "done"}
    (log,) = handed.sweep.path.glob("submitted/*/0.log")
    wait_until(lambda: "good bye" in log.read_text())
    assert [p.name for p in handed.sweep.path.glob("starts/*/*")] == ["begun"]


def test_other_jobs_leave_no_marks(tmp_path: Path) -> None:
    chunk = Chunk("ab12", "controller", str(tmp_path), str(tmp_path), ((),))
    assert start.first_lines(chunk) + start.lines_before_worker(chunk) == []
    assert start.last_lines(chunk) == []
    start.begun(chunk, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_search_tries_a_point_again_that_could_not_begin(tmp_path: Path) -> None:
    """A worker that has begun tries again by itself; nobody has where none began."""
    point = fakes.make_point("aa00", "train")
    rounds = Rounds(
        SweepFolder(tmp_path), cast("Any", None), cast("Any", None), Options(retries=1), Console()
    )
    early = {"aa00": PointState(point, "failed", "x", log=tmp_path / "0.log")}
    assert rounds._hopeful(early)["aa00"].state == "planned"
    rounds._again["aa00"] = 1
    assert rounds._hopeful(early)["aa00"].state == "failed"
    rounds._again["aa00"] = 0
    assert rounds._hopeful({"aa00": PointState(point, "failed", "x")})["aa00"].state == "failed"
