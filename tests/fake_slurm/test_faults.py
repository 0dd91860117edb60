"""What can be made to go wrong goes wrong when it is to, and not otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.fake_slurm.handle import BUSY, FULL, NO_ACCOUNTING
from tests.fake_slurm.calls import call, refused, submit


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def test_without_accounting_sacct_fails_and_all_else_works(idle: FakeSlurm) -> None:
    idle.no_accounting()
    job = submit("true")
    for _ in range(2):
        assert refused("sacct", "-j", job) == f"{NO_ACCOUNTING}\n"
    assert call("squeue", "-h", "-o", "%i") == f"{job}\n"
    idle.mend()
    assert job in call("sacct", "-n", "-P", "-o", "JobID")


def test_the_third_submission_is_refused(idle: FakeSlurm) -> None:
    idle.fail("sbatch", FULL, skip=2, times=None)
    submit("true"), submit("true")
    for _ in range(2):
        assert "job submit limit" in refused("sbatch", "--wrap=true")
    assert len(idle.tasks()) == 2


def test_a_passing_error(idle: FakeSlurm) -> None:
    idle.fail("sbatch", BUSY, times=2)
    assert refused("sbatch", "--wrap=true") == refused("sbatch", "--wrap=true")
    assert submit("true") == "1001"


def test_an_answer_that_is_lost_though_the_job_was_taken(idle: FakeSlurm) -> None:
    idle.fail("sbatch", BUSY, done=True)
    assert "Socket timed out" in refused("sbatch", "--wrap=true")
    assert idle.states() == {"1001": "PENDING"}


@pytest.mark.parametrize(("done", "jobs"), [(True, 2), (False, 1)])
def test_the_caller_dies_between_acceptance_and_answer(
    idle: FakeSlurm, done: bool, jobs: int
) -> None:
    idle.kill_caller("sbatch", skip=1, done=done)
    code = "import subprocess\nfor _ in range(3): subprocess.run(['sbatch', '--wrap=true'])"
    caller = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=os.environ)
    assert caller.returncode == -signal.SIGKILL
    # the pretended sbatch may still be at work when its caller is gone
    time.sleep(0.2)
    assert len(idle.tasks()) == jobs


def test_a_state_that_nobody_knows(idle: FakeSlurm) -> None:
    job = submit("true")
    idle.show_as(PENDING="WAITING_FOR_GODOT")
    assert call("squeue", "-h", "-o", "%T") == "WAITING_FOR_GODOT\n"
    assert "JobState=WAITING_FOR_GODOT" in call("scontrol", "show", "job", job)


def test_a_slow_queue(idle: FakeSlurm) -> None:
    idle.slow("squeue", 60, skip=1, times=1)
    call("squeue")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run(["squeue"], timeout=2)
    call("squeue")


def test_calls_are_kept(idle: FakeSlurm) -> None:
    call("squeue", "-h")
    assert idle.calls("squeue") == [["-h"]] and idle.calls("scancel") == []


def test_only_programs_that_there_are_can_fail(idle: FakeSlurm) -> None:
    with pytest.raises(ValueError, match="salloc"):
        idle.fail("salloc", "no")
