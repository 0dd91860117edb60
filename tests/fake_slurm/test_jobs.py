"""Jobs of the pretended Slurm really run, in its order, and end as Slurm ends them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from tests.fake_slurm.calls import call, submit, wait_until

LOOP = "while true; do sleep 0.05; done"
DEAF = "trap '' TERM USR2; echo deaf > {file}; while true; do sleep 0.1; done"
"""A job that no signal but SIGKILL ends."""


def state(fake: FakeSlurm, job: str) -> str:
    (task,) = fake.tasks(job)
    return str(task["state"])


def accounted(job: str) -> str:
    return call("sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode").strip()


def test_an_element_sees_its_index_and_writes_its_own_file(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    script = "echo $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID $CUDA_VISIBLE_DEVICES; pwd"
    options = (
        "--array=3-4",
        f"--output={tmp_path}/%A_%a.out",
        "--gres=gpu:2",
        f"--chdir={tmp_path}",
    )
    job = submit(script, *options)
    wait_until(lambda: set(fake_slurm.states().values()) == {"COMPLETED"})
    assert (tmp_path / f"{job}_4.out").read_text() == f"{job} 4 0,1\n{tmp_path}\n"
    assert (tmp_path / f"{job}_3.out").exists()


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("exit 0", "COMPLETED|0:0"),
        ("exit 3", "FAILED|3:0"),
        ("kill -9 $$", "FAILED|0:9"),
        ("srun bash -c 'kill -9 $$'", "FAILED|137:0"),
        ("srun --unbuffered --mpi=none --output /dev/null bash -c 'exit 4'", "FAILED|4:0"),
    ],
)
def test_how_a_job_ended_is_accounted(fake_slurm: FakeSlurm, script: str, ended: str) -> None:
    job = submit(script)
    wait_until(lambda: accounted(job) == ended)
    assert call("squeue", "-h", "-j", job, "-o", "%T") == ""


def test_no_more_elements_run_than_the_throttle_says(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    submit(f"echo + >> {tmp_path}/log; sleep 0.2; echo - >> {tmp_path}/log", "--array=0-5%2")
    wait_until(lambda: set(fake_slurm.states().values()) == {"COMPLETED"})
    running, most = 0, 0
    for sign in (tmp_path / "log").read_text().split():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert most == 2


def test_jobs_wait_for_what_they_depend_on(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    first = submit(f"{wait}; echo first >> {tmp_path}/log; exit 1", "--array=0-1")
    after_one = submit("true", f"--dependency=afterany:{first}_1")
    after_all = submit(f"echo last >> {tmp_path}/log", f"--dependency=afterany:{first}")
    never = submit("true", f"--dependency=afterok:{first}_0")
    unknown = submit("true", "--dependency=afterany:7")
    wait_until(lambda: state(fake_slurm, unknown) == "COMPLETED")
    assert call("squeue", "-h", "-j", after_one, "-o", "%r") == "Dependency\n"
    (tmp_path / "go").touch()
    wait_until(lambda: state(fake_slurm, after_all) == "COMPLETED")
    wait_until(lambda: state(fake_slurm, after_one) == "COMPLETED")
    assert (tmp_path / "log").read_text().split() == ["first", "first", "last"]
    wait_until(lambda: "Never" in call("squeue", "-h", "-j", never, "-o", "%r"))
    assert state(fake_slurm, never) == "PENDING"


def test_the_time_limit_warns_then_ends(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    step = f"trap 'echo warned >> {tmp_path}/log' USR2; touch {tmp_path}/on; {LOOP}"
    job = submit(f'srun bash -c "{step}"', "--signal=USR2@30", "--time=60")
    wait_until(lambda: (tmp_path / "on").exists())
    fake_slurm.limit(job, 1.0)
    wait_until(lambda: (tmp_path / "log").exists())
    assert state(fake_slurm, job) == "RUNNING"
    wait_until(lambda: accounted(job).startswith("TIMEOUT"))
    assert (tmp_path / "log").read_text() == "warned\n"


def test_minutes_of_the_limit_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeSlurm(tmp_path / "slurm", minute_s=0.3, kill_wait_s=0.2) as fake:
        monkeypatch.setenv("PATH", fake.path)
        job = submit(DEAF.format(file=tmp_path / "on"), "--time=1")
        wait_until(lambda: state(fake, job) == "TIMEOUT")


def test_a_requeued_job_is_asked_then_killed_and_starts_again(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    fake_slurm.store.set("kill_wait_s", 0.5)
    deaf = DEAF.format(file=f"{tmp_path}/start-${{SLURM_RESTART_COUNT:-0}}")
    job = submit(deaf)
    wait_until(lambda: (tmp_path / "start-0").exists())
    call("scontrol", "requeue", job)
    assert state(fake_slurm, job) == "COMPLETING"
    wait_until(lambda: (tmp_path / "start-1").exists())
    assert "Restarts=1" in call("scontrol", "show", "job", job)
    call("scancel", job)
    wait_until(lambda: state(fake_slurm, job) == "CANCELLED")


def test_a_preempted_job_has_its_grace(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    step = f"trap 'echo saved > {tmp_path}/log; exit' USR2; touch {tmp_path}/on; {LOOP}"
    job = submit(f'srun bash -c "{step}"', "--signal=USR2@60")
    wait_until(lambda: (tmp_path / "on").exists())
    fake_slurm.preempt(job, grace_s=20)
    # as on a real cluster: who leaves within the grace has ended, and is not started again
    wait_until(lambda: state(fake_slurm, job) == "COMPLETED")
    assert (tmp_path / "log").read_text() == "saved\n"


@pytest.mark.parametrize(("evict", "after"), [(False, "RUNNING"), (True, "PREEMPTED")])
def test_preemption_without_grace(
    fake_slurm: FakeSlurm, tmp_path: Path, evict: bool, after: str
) -> None:
    fake_slurm.store.set("kill_wait_s", 0.3)
    deaf = DEAF.format(file=f"{tmp_path}/start-${{SLURM_RESTART_COUNT:-0}}")
    job = submit(deaf)
    wait_until(lambda: (tmp_path / "start-0").exists())
    fake_slurm.preempt(job, evict=evict)
    restarts = 0 if evict else 1
    wait_until(
        lambda: (state(fake_slurm, job), fake_slurm.tasks(job)[0]["restarts"]) == (after, restarts)
    )


def test_on_a_lost_node_the_old_process_lives_on(fake_slurm: FakeSlurm, tmp_path: Path) -> None:
    work = f"echo ${{SLURM_RESTART_COUNT:-0}} >> {tmp_path}/log; sleep 0.05"
    job = submit(f"while true; do {work}; done")
    wait_until(lambda: (tmp_path / "log").exists())
    fake_slurm.lose_node(job)
    wait_until(lambda: "1" in (tmp_path / "log").read_text().split())
    before = (tmp_path / "log").read_text().split().count("0")
    wait_until(lambda: (tmp_path / "log").read_text().split().count("0") > before)
    fake_slurm.stop()
    written = (tmp_path / "log").read_text()
    assert state(fake_slurm, job) == "RUNNING" and written == (tmp_path / "log").read_text()


def test_a_signal_reaches_the_steps_and_only_with_full_the_script(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    step = f"trap 'echo step >> {log}' USR1; touch {tmp_path}/on; {LOOP}"
    job = submit(
        f"trap 'echo script >> {log}' USR1\nsrun bash -c \"{step}\" &\nwhile true; do wait; done"
    )
    wait_until(lambda: (tmp_path / "on").exists())
    call("scancel", "--signal=USR1", job)
    wait_until(lambda: log.exists() and log.read_text() == "step\n")
    call("scancel", "--signal=USR1", "--batch", job)
    wait_until(lambda: "script" in log.read_text())
    assert log.read_text().split() == ["step", "script"]


def test_a_job_without_a_folder_for_its_output_fails_without_a_word(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    job = submit("true", f"--output={tmp_path}/nowhere/out")
    wait_until(lambda: accounted(job) == "FAILED|0:53")


def test_nothing_runs_on_when_whoever_started_it_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time\nfrom pathlib import Path\n"
        "from sparrow_lab.fake_slurm import FakeSlurm\n"
        "fake = FakeSlurm(Path(sys.argv[1])); fake.start(); os.environ['PATH'] = fake.path\n"
        "script = '#!/bin/sh\\nexec sleep 100\\n'\n"
        "subprocess.run(['sbatch', '--output=/dev/null'], input=script, text=True)\n"
        "while 'RUNNING' not in fake.states().values(): time.sleep(0.02)\n"
        "print(fake._controller.pid, fake.tasks()[0]['pid'], flush=True); os.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "slurm")], stdout=subprocess.PIPE, text=True
    ).stdout
    pids = [int(word) for word in said.split()[-2:]]
    assert len(pids) == 2, "the controller and its job never ran"
    wait_until(lambda: not any(alive(pid) for pid in pids))


def alive(pid: int) -> bool:
    """Whether a process lives and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
