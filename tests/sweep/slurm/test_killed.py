"""The command line killed at any instant of a submission: no point is lost, none runs twice."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.ledger import Ledger
from tests.sweep import fakes
from tests.sweep.slurm.conftest import Handed, HandIn
from tests.sweep.slurm.test_runs import assert_true


def command(handed: Handed) -> subprocess.Popen[str]:
    """The submission as a process of its own."""
    site = Path(handed.site._file)
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.sweep.slurm.submit_fake"),
            *(str(handed.sweep.path), str(site)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_each_ran_once(handed: Handed) -> None:
    assert set(handed.over(240).values()) == {"done"}
    assert_true(handed.sweep)
    for point in handed.sweep.read_plan().points:
        folder = handed.sweep.point(point.id)
        assert fakes.starts(folder.path) == 1, point.id
        assert len(folder.attempts()) == 1, point.id


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_killed_around_a_call_of_sbatch(
    fake_slurm: FakeSlurm, hand_in: HandIn, skip: int, done: bool
) -> None:
    """Before it: the array was never submitted. After it: it was, and nobody wrote that down."""
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9]))
    fake_slurm.kill_caller("sbatch", skip=skip, done=done)
    first = command(handed)
    said, _ = first.communicate(timeout=60)
    assert first.returncode == -9, said
    second = command(handed)
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0, said
    assert_each_ran_once(handed)
    submitted = {t["job"] for t in fake_slurm.tasks()}
    assert len(submitted) == 5  # every array once


def test_run_twice_at_the_same_time(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1]))
    both = [command(handed) for _ in range(2)]
    ended = [(p.communicate(timeout=90)[0], p.returncode) for p in both]
    assert {code for _, code in ended} <= {0, 2}
    for said, code in ended:
        assert code == 0 or "another sparrow-lab is running this sweep" in said
    assert_each_ran_once(handed)


def test_an_array_that_arrives_late_is_not_submitted_again(
    fake_slurm: FakeSlurm, hand_in: HandIn
) -> None:
    """It was not in the queue when a later command looked, and so was written off."""
    handed = hand_in(fakes.make_plan(taus=[0.8, 0.9], pause=0.5))
    handed.submit()
    ledger = Ledger(handed.sweep.ledger_path)
    tokens = [str(e["token"]) for e in ledger.read() if e["event"] == "submitting"]
    for token in tokens[-2:]:
        ledger.append("refused", token=token, reason="was never submitted")
    assert not handed.submit().arrays
    assert sum("although its number had not been written" in line for line in handed.said) == 2
    assert_each_ran_once(handed)


@pytest.mark.slow
def test_killed_at_20_random_instants(fake_slurm: FakeSlurm, hand_in: HandIn) -> None:
    dice = random.Random(7)
    handed = hand_in(fakes.make_plan(taus=[0.7, 0.8, 0.9], seeds=[0, 1], pause=0.1))
    for _ in range(20):
        process = command(handed)
        time.sleep(dice.uniform(0.2, 2.5))
        process.kill()
        process.communicate()
    last = command(handed)
    said, _ = last.communicate(timeout=120)
    assert last.returncode == 0, said
    assert_each_ran_once(handed)
