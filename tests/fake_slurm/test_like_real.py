"""The pretended Slurm says what the real one says, word by word, where tests rely on it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from tests.fake_slurm.calls import wait_until
from tests.slurm.real import RealSlurm

pytestmark = pytest.mark.slurm

Run = Callable[..., str]

UNKNOWN = "9000000"
"""No job of a test cluster has this id: it counts on from run to run."""


def on(fake: FakeSlurm, pretended: bool) -> Run:
    """A function that calls a program of one of the two; the other is not on the PATH."""
    path = [place for place in os.environ["PATH"].split(os.pathsep) if place != str(fake.bin)]
    if pretended:
        path.insert(0, str(fake.bin))
    env = {**os.environ, "PATH": os.pathsep.join(path), "SLURM_CONF": str(RealSlurm.conf)}

    def run(*command: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env=env, timeout=60
        )
        return f"{done.returncode}\n{done.stdout}{done.stderr}"

    return run


def submitted(run: Run, *options: str, script: str = "true") -> str:
    """The id of a new job."""
    said = run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={script}")
    code, job = said.split()
    assert code == "0", said
    return job


def refusals(run: Run) -> list[str]:
    wrong = [
        ["--array=0-1001"], ["--array=1001"], ["--array=x"], ["--partition=nowhere"],
        ["--nonsense"], ["--gres=gpu:3"], ["--time=soon"],
    ]  # fmt: skip
    said = [run("sbatch", *options, "--output=/dev/null", "--wrap=true") for options in wrong]
    said.append(run("sbatch", "no-such-file"))
    said.append(run("sbatch", stdin="no first line\n"))
    return said


def unknown_ids(run: Run) -> list[str]:
    return [
        run("squeue", "-h", "-j", UNKNOWN),
        run("scontrol", "requeue", UNKNOWN),
        run("scontrol", "show", "job", UNKNOWN),
        run("scancel", UNKNOWN),
        run("sacct", "-n", "-j", UNKNOWN),
        run(
            "sbatch",
            "--hold",
            f"--dependency=afterany:{UNKNOWN}",
            "--output=/dev/null",
            "--wrap=true",
        ),
    ]


def a_waiting_array(run: Run) -> list[str]:
    job = submitted(run, "--hold", "--array=0-3,7%2", "--job-name=some name")
    form = "%i|%A|%F|%K|%T|%t|%r|%R|%j|%N|%D|%M"
    said = [
        run("squeue", "-h", "-j", job, "-o", form),
        run("squeue", "-h", "-r", "-j", job, f"--format={form}"),
        run("squeue", "-r", "-j", job, "-o", "%i %T"),
        run("scancel", f"{job}_2", f"{job}_7"),
        run("squeue", "-h", "-j", job, "-o", "%i"),
        run("squeue", "-h", "-j", f"{job}_2", "-o", "%i"),
        run("scancel", "--state=RUNNING", job),
        run("squeue", "-h", "-n", "some name", "-t", "PENDING", "-o", "%i"),
        run("scancel", "--name=some name"),
        run("squeue", "-h", "-j", job, "-o", "%i"),
    ]
    return [re.sub(rf"\b{job}(?=\D)", "JOB", text) for text in said]


def dependencies(run: Run) -> list[str]:
    first = submitted(run, "--array=0-1", script="exit 3")
    wait_until(lambda: run("squeue", "-h", "-j", first).strip() == "0", 30)
    jobs = {
        "afterany": submitted(run, f"--dependency=afterany:{first}_1"),
        "afterok": submitted(run, f"--dependency=afterok:{first}"),
        "afternotok": submitted(run, f"--dependency=afternotok:{first}_0"),
    }
    gone = ("afterany", "afternotok")
    wait_until(lambda: all(run("squeue", "-h", "-j", jobs[k]).strip() == "0" for k in gone), 30)
    wait_until(lambda: "Never" in run("squeue", "-h", "-j", jobs["afterok"], "-o", "%r"), 30)
    said = [run("squeue", "-h", "-j", jobs["afterok"], "-o", "%T %r")]
    run("scancel", jobs["afterok"])
    return said


def ends(run: Run) -> list[str]:
    scripts = ["exit 0", "exit 3", "kill -9 $$", "srun bash -c 'exit 4'"]
    jobs = [submitted(run, script=script) for script in scripts]
    jobs.append(submitted(run, "--hold"))
    run("scancel", jobs[-1])

    def accounted() -> list[str]:
        form = ("-n", "-X", "-P", "-o", "State,ExitCode")
        return [run("sacct", "-j", job, *form) for job in jobs]

    wait_until(lambda: not any(re.search("PENDING|RUNNING|^0\n$", t) for t in accounted()), 60)
    return accounted()


def environment(run: Run) -> list[str]:
    names = ["ARRAY_TASK_ID", "ARRAY_TASK_COUNT", "RESTART_COUNT", "JOB_NAME", "PROCID", "NTASKS"]
    names += ["STEP_ID", "OPEN_MODE", "JOB_PARTITION"]
    names = ["CUDA_VISIBLE_DEVICES", *(f"SLURM_{name}" for name in names)]
    script = " ".join(f"{name}=${{{name}-none}}" for name in names)
    file = f"/tmp/like-real-{os.getpid()}"
    options = ("--array=2", "--job-name=x", "--open-mode=append", "--gres=gpu:2")
    try:
        submitted(
            run,
            *options,
            script=f'srun bash -c "echo {script}" > {file}; mv {file} {file}.ok'.replace(
                "$", "\\$"
            ),
        )
        wait_until(lambda: os.path.exists(f"{file}.ok"), 30)
        with open(f"{file}.ok") as stream:
            return stream.read().split()
    finally:
        for left in (file, f"{file}.ok"):
            if os.path.exists(left):
                os.unlink(left)


def signals(run: Run) -> list[str]:
    """Who hears of a signal and of a requeue: S the script, T the task of its step."""
    log = Path(f"/tmp/like-real-{os.getpid()}")
    log.write_text("")
    hear = "for s in USR1 USR2 TERM; do trap 'echo {who} '$s' >> {log}' $s; done"
    loop = "while true; do sleep 0.1; done"
    task = f"#!/bin/bash\n{hear.format(who='T', log=log)}\necho T up >> {log}\n{loop}\n"
    script = f"#!/bin/bash\n{hear.format(who='S', log=log)}\nsrun {log}.sh &\n{loop}\n"
    step = Path(f"{log}.sh")
    step.write_text(task)
    step.chmod(0o755)

    def heard(*lines: str) -> bool:
        return all(line in log.read_text().splitlines() for line in lines)

    try:
        job = run("sbatch", "--parsable", "--output=/dev/null", stdin=script).split()[1]
        wait_until(lambda: heard("T up"), 30)
        run("scancel", "--signal=USR1", job)
        wait_until(lambda: heard("T USR1"), 30)
        run("scancel", "--signal=USR2", "--batch", job)
        wait_until(lambda: heard("S USR2"), 30)
        before = sorted(log.read_text().splitlines())
        run("scontrol", "requeue", job)
        wait_until(lambda: log.read_text().splitlines().count("T up") == 2, 40)
        after = sorted(set(log.read_text().splitlines()) - set(before))
        run("scancel", job)
        wait_until(lambda: run("squeue", "-h", "-j", job, "-o", "%T") == "0\n", 30)
        return [*before, "requeued", *after]
    finally:
        step.unlink()
        log.unlink()


@pytest.mark.parametrize(
    "talk", [refusals, unknown_ids, a_waiting_array, dependencies, ends, environment, signals]
)
def test_both_say_the_same(
    slurm: RealSlurm, fake_slurm: FakeSlurm, talk: Callable[[Run], list[str]]
) -> None:
    pretended = [re.sub(r"\d{4,}", "N", text) for text in talk(on(fake_slurm, True))]
    real = [re.sub(r"\d{4,}", "N", text) for text in talk(on(fake_slurm, False))]
    assert pretended == real
