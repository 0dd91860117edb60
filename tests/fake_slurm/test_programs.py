"""The pretended programs answer as Slurm 22.05 does; nothing runs here."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from tests.fake_slurm.calls import call, refused, submit


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A cluster on which jobs wait until they are set to a state by hand."""
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", fake.path)
    return fake


def test_sbatch_reads_options_in_the_script_and_those_of_the_command_go_before(
    idle: FakeSlurm, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n\n# text\n#SBATCH --job-name='a name'\n#SBATCH --time=90\n"
        "#SBATCH --partition=low\ntrue\n#SBATCH --job-name=not-this\n"
    )
    assert call("sbatch", "-p", "high", str(script)) == "Submitted batch job 1001\n"
    assert call("squeue", "-h", "-o", "%i|%j|%P|%l|%T|%R") == (
        "1001|a name|high|1:30:00|PENDING|(None)\n"
    )


def test_an_array_is_one_line_or_with_r_a_line_an_element(idle: FakeSlurm) -> None:
    job = submit("true", "--array=0-3,7%2")
    assert call("squeue", "-h", "-o", "%i %K %A") == f"{job}_[0-3,7%2] 0-3,7%2 {job}\n"
    every = call("squeue", "-h", "-r", "--format=%i").split()
    assert every == [f"{job}_{i}" for i in (0, 1, 2, 3, 7)]
    idle.set_state(f"{job}_1", "RUNNING")
    assert call("squeue", "-h", "-t", "RUNNING", "-o", "%i %F %t").split() == [f"{job}_1", job, "R"]


def test_the_next_job_has_a_number_of_its_own_after_an_array(idle: FakeSlurm) -> None:
    first = int(submit("true", "--array=0-9"))
    assert int(submit("true")) == first + 10


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("--array=0-1001", "Invalid job array specification"),
        ("--array=1001", "Invalid job array specification"),
        ("--array=x", "Invalid job array specification"),
        ("--partition=nowhere", "invalid partition specified: nowhere"),
        ("--gres=gpu:3", "Requested node configuration is not available"),
        ("--dependency=afterany:x", "Job dependency problem"),
        ("--nonsense=1", "unrecognized option '--nonsense'"),
    ],
)
def test_sbatch_refuses(idle: FakeSlurm, option: str, error: str) -> None:
    assert error in refused("sbatch", option, "--wrap=true")
    assert idle.tasks() == []


def test_the_largest_index_is_one_below_the_limit(idle: FakeSlurm) -> None:
    submit("true", "--array=0-1000")
    assert "MaxArraySize            = 1001\n" in call("scontrol", "show", "config")


def test_an_id_that_is_none_is_an_error_where_slurm_makes_it_one(idle: FakeSlurm) -> None:
    assert "Invalid job id" in refused("squeue", "-j", "99")
    assert "Invalid job id" in refused("scontrol", "requeue", "99")
    assert call("sacct", "-n", "-j", "99") == ""
    assert call("scancel", "99") == ""


def test_what_is_cancelled_leaves_the_queue_and_stays_in_the_accounting(idle: FakeSlurm) -> None:
    job, other = submit("true", "--array=0-2"), submit("true", "--job-name=kept")
    call("scancel", f"{job}_1", "--state=PENDING")
    assert call("squeue", "-h", "-r", "-o", "%i").split() == [f"{job}_0", f"{job}_2", other]
    call("scancel", "--name=kept")
    assert call("squeue", "-h", "-j", other, "-o", "%i") == ""
    shown = call("sacct", "-n", "-P", "-X", "-o", "JobID,State").splitlines()
    assert f"{job}_1|CANCELLED by 0" in shown and f"{job}_[0,2]|PENDING" in shown
    assert f"{other}|CANCELLED by 0" in shown


def test_scontrol_shows_a_job(idle: FakeSlurm) -> None:
    job = submit("true", "--array=0-1", "--dependency=afterany:12")
    text = call("scontrol", "show", "job", f"{job}_0")
    assert f"ArrayJobId={job}\n" in text and "JobState=PENDING\n" in text
    assert "Reason=Dependency\n" in text and "Dependency=afterany:12\n" in text
    assert len(call("scontrol", "show", "job", "-o", job).splitlines()) == 2


def test_partitions(idle: FakeSlurm) -> None:
    assert call("sinfo", "-h", "-o", "%R %D %G").splitlines() == [
        "main 2 gpu:2",
        "low 2 gpu:2",
        "high 2 gpu:2",
    ]
    assert "Invalid partition name" in refused("scontrol", "show", "partition", "nowhere")


def test_ten_thousand_jobs_are_quick(idle: FakeSlurm) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(10):
        submit("true", "--array=0-999%40", "--job-name=many")
    lines = call("squeue", "-h", "-r", "--format=%i|%F|%K|%T|%r|%N|%j").splitlines()
    assert len(lines) == 10_000 and lines[0] == "1001_0|1001|0|PENDING|None||many"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # of the processor, not of the clock: other tests may run beside this one
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 4
