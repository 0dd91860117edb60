"""What a real cluster cannot be made to do at will: thousands of points, odd answers, silence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.fake_slurm.handle import FULL
from sparrow_lab.runs.layout import SweepFolder
from tests.contracts import truth
from tests.contracts.backends import Backend
from tests.contracts.conftest import site_file
from tests.slurm.conftest import MakeBackend
from tests.slurm.plans import job_of, trains


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A cluster on which jobs wait until they are set to a state by hand."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def status(sweep: SweepFolder) -> dict[str, Any]:
    """What `sparrow-lab status --json` prints; it must not change a file."""
    before = files_of(sweep)
    command = [sys.executable, "-m", "sparrow_lab.cli", "status", str(sweep.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files_of(sweep) == before
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def files_of(sweep: SweepFolder) -> dict[str, int]:
    """Every file with the time of its last change."""
    return {str(p): p.stat().st_mtime_ns for p in sweep.path.rglob("*")}


def test_2500_points_against_a_cap_of_1001_and_a_throttle_of_40(
    idle: FakeSlurm, tmp_path: Path
) -> None:
    backend = Backend("fake", tmp_path, site_file(tmp_path, more="throttle: 40\n"))
    plan = trains(2500)
    assert backend.submit(plan) == 0
    held: list[str] = []
    for job in idle.store.rows("select * from submissions order by job"):
        script = str(job["command"])
        elements = json.loads((Path(script).parent / "chunk.json").read_text())["elements"]
        indices = [t["idx"] for t in idle.tasks(job["job"])]
        assert indices == list(range(len(elements))) and max(indices) <= 1000
        assert job["throttle"] == 40 or len(elements) <= 40
        held += [point_id for element in elements for point_id in element]
    assert sorted(held) == sorted(p.id for p in plan.points)
    # one array after the other: the throttle of each is that of all
    jobs = idle.store.rows("select job, dependency from submissions order by job")
    expected = ["", *(f"afterany:{before['job']}" for before in jobs[:-1])]
    assert [job["dependency"] for job in jobs] == expected
    assert {s.state for s in backend.states().values()} == {"pending"}


def test_states_that_nobody_knows_are_shown_and_nothing_is_rewritten(
    idle: FakeSlurm, tmp_path: Path
) -> None:
    backend = Backend("fake", tmp_path, site_file(tmp_path))
    plan = trains(3)
    backend.submit(plan)
    idle.show_as(PENDING="AWAITING_GODOT")
    points = status(backend.sweep())["points"]
    assert {p["state"] for p in points} == {"pending"}
    assert {p["reason"] for p in points} == {"Slurm says AWAITING_GODOT"}
    # a submitter does not take them for lost either
    assert backend.submit(plan) == 0 and "nothing is left to submit" in backend.said[-1]
    assert len(idle.calls("sbatch")) == 2  # the first point alone, and the rest


def test_when_the_queue_does_not_answer_the_files_do(idle: FakeSlurm, tmp_path: Path) -> None:
    backend = Backend("fake", tmp_path, site_file(tmp_path))
    backend.submit(trains(2))
    down = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    idle.fail("squeue", down, times=None)
    found = status(backend.sweep())
    assert {p["state"] for p in found["points"]} == {"submitted"}
    assert "Unable to contact slurm controller" in found["notice"]


def test_a_job_that_died_without_a_word_is_lost_whatever_accounting_says(
    fake: MakeBackend, fake_slurm: FakeSlurm
) -> None:
    backend = fake()
    plan = trains(1, steps=10_000, every=5, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 5)
    job = job_of(backend, "7a000")
    fake_slurm.kill(job)
    assert backend.wait(plan) == {"7a000": "lost"}
    fake_slurm.no_accounting()
    found = status(backend.sweep())
    assert [p["state"] for p in found["points"]] == ["lost"] and not found["notice"]


def test_a_full_queue_names_what_was_submitted_and_the_same_command_goes_on(
    fake: MakeBackend, fake_slurm: FakeSlurm
) -> None:
    backend = fake(more="array_cap: 2\n")
    plan = trains(7, steps=2)
    fake_slurm.fail("sbatch", FULL, skip=2)
    assert backend.submit(plan) == 2
    said = " ".join(backend.said[-1].split())
    assert "QOSMaxSubmitJobPerUserLimit" in said
    assert "submitted before it: 3 points in 2 arrays" in said and "4 points stay planned" in said
    assert set(backend.run(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())


def test_without_accounting_all_states_are_right(fake: MakeBackend, fake_slurm: FakeSlurm) -> None:
    backend = fake()
    fake_slurm.no_accounting()
    plan = trains(3, steps=4)
    failing = trains(1, name="failing", steps=4, fail_at=2)
    backend.submit(failing, retries=0)
    assert set(backend.run(plan).values()) == {"done"}
    assert not status(backend.sweep())["notice"]
    (point,) = status(backend.sweep("failing"))["points"]
    assert (point["state"], point["reason"]) == ("failed", "ValueError: no luck at step 2")


def test_where_preemption_cancels_the_rest_goes_on_in_a_new_job(
    fake: MakeBackend, fake_slurm: FakeSlurm
) -> None:
    backend = fake(more="on_preempt: resubmit\n")
    plan = trains(2, steps=80, every=1000, sleep=0.05)
    backend.submit(plan)
    for round_ in (1, 2):
        backend.until_step("7a000", 10 * round_, attempt=round_)
        fake_slurm.preempt(job_of(backend, "7a000"), grace_s=20, evict=True)
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    assert len(backend.sweep().point("7a000").attempts()) == 3
    assert len(backend.sweep().point("7a001").attempts()) == 1
