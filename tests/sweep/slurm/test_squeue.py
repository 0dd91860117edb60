"""What squeue prints, read: odd lines, odd states, and the one call that is made."""

from __future__ import annotations

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.sweep.slurm.squeue import parse, read_queue

GOOD = "120_4|120|4|RUNNING|None|n1|sl-aa11"


def test_a_job_is_known_by_its_name_and_index() -> None:
    queued = parse(GOOD)["aa11", 4]
    assert (queued.job, queued.array, queued.phase, queued.node) == (
        "120_4",
        "120",
        "running",
        "n1",
    )
    assert queued.why == ""


@pytest.mark.parametrize(
    "line",
    [
        "",
        "121|121|N/A|RUNNING|None|n1|somebody else's job",
        "121|121|N/A|RUNNING|None|n1|sl-aa11",  # no array: not ours
        "120_4|120|4|COMPLETED|None|n1|sl-aa11",
        "120_4|120|4|CANCELLED by 0|None|n1|sl-aa11",
        "a greeting of the site",
    ],
)
def test_lines_that_are_not_ours_are_passed_over(line: str) -> None:
    assert parse(line) == {}


@pytest.mark.parametrize(
    ("state", "reason", "phase", "why"),
    [
        ("PENDING", "Dependency", "pending", "waits for what it needs"),
        ("PENDING", "AssocGrpGRES", "pending", "AssocGrpGRES"),
        ("REQUEUED", "None", "pending", ""),
        ("SUSPENDED", "None", "running", ""),
        ("COMPLETING", "None", "running", ""),
        ("POWERING_UP_NODE", "None", "pending", "Slurm says POWERING_UP_NODE"),
    ],
)
def test_a_state_that_nobody_knows_is_one_that_waits(
    state: str, reason: str, phase: str, why: str
) -> None:
    queued = parse(f"120_4|120|4|{state}|{reason}||sl-aa11")["aa11", 4]
    assert (queued.phase, queued.why) == (phase, why)


def test_of_two_jobs_of_one_element_the_one_that_runs_counts() -> None:
    later = "130_4|130|4|PENDING|Dependency||sl-aa11"
    for text in (f"{GOOD}\n{later}", f"{later}\n{GOOD}"):
        assert parse(text)["aa11", 4].job == "120_4"


def test_a_queue_that_cannot_be_read_says_why(fake_slurm: FakeSlurm) -> None:
    fake_slurm.fail("squeue", "slurm_load_jobs error: Unable to contact slurm controller")
    queue = read_queue()
    assert not queue.elements and "Unable to contact slurm controller" in queue.error
    assert read_queue().error == ""


def test_no_squeue_on_this_machine_is_a_reason_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert read_queue().error == "squeue: there is no such program on this machine"
