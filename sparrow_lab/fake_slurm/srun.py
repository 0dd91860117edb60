"""srun inside a job: starts the step's tasks, waits for them, and is deaf to SIGTERM itself."""

from __future__ import annotations

import getopt
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, cast

from sparrow_lab.fake_slurm.processes import filled

_VALUED = (
    "output error input ntasks nodes cpus-per-task mpi gres gpus mem mem-per-cpu export open-mode"
    " wait signal time job-name chdir distribution cpu-bind ntasks-per-node kill-on-bad-exit"
)
_FLAGS = "unbuffered label overlap exact exclusive quit-on-interrupt no-kill quiet version"


def srun(words: Sequence[str]) -> int:
    """Run a command as a step of the job that this is called in; the highest exit code."""
    names = [f"{n}=" for n in _VALUED.split()] + _FLAGS.split()
    plain = ["--kill-on-bad-exit=1" if w in ("--kill-on-bad-exit", "-K") else w for w in words]
    try:
        found, command = getopt.getopt(plain, "o:e:n:N:c:uKl", names)
    except getopt.GetoptError as error:
        print(f"srun: unrecognized option '{error.opt}'", file=sys.stderr)
        return 1
    short = {"-o": "--output", "-e": "--error", "-n": "--ntasks", "-c": "--cpus-per-task"}
    options = {short.get(key, key): value for key, value in found}
    if "--version" in options:
        print("slurm-wlm 22.05.8")
        return 0
    if "SLURM_JOB_ID" not in os.environ:
        print("srun: error: this pretended Slurm runs steps of jobs only", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    count = int(options.get("--ntasks") or os.environ.get("SLURM_NTASKS") or 1)
    tasks = [_start(command, options, rank, count) for rank in range(count)]
    codes = []
    for rank, task in enumerate(tasks):
        code = task.wait()
        node = os.environ.get("SLURMD_NODENAME")
        if code < 0:
            what = signal.Signals(-code).name
            print(f"srun: error: {node}: task {rank}: {what}", file=sys.stderr)
        elif code:
            print(
                f"srun: error: {node}: task {rank}: Exited with exit code {code}", file=sys.stderr
            )
        codes.append(128 - code if code < 0 else code)
    return max(codes)


def _start(
    command: Sequence[str], options: dict[str, str], rank: int, count: int
) -> subprocess.Popen[bytes]:
    env = dict(os.environ)
    env.update(SLURM_STEP_ID="0", SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
    env["SLURM_NTASKS"] = str(count)
    append = "a" in (options.get("--open-mode", "")[:1], os.environ.get("SLURM_OPEN_MODE"))
    mode = "ab" if append else "wb"
    name = {
        "A": env.get("SLURM_ARRAY_JOB_ID", env["SLURM_JOB_ID"]),
        "a": env.get("SLURM_ARRAY_TASK_ID", ""),
        "j": env["SLURM_JOB_ID"], "J": env["SLURM_JOB_ID"], "x": env["SLURM_JOB_NAME"],
        "N": env["SLURMD_NODENAME"], "n": 0, "t": rank, "%": "%",
    }  # fmt: skip
    out = _open(options.get("--output"), name, mode)
    err = _open(options.get("--error"), name, mode) or out
    return subprocess.Popen(
        list(command),
        env=env,
        stdout=out,
        stderr=err,
        start_new_session=True,
        preexec_fn=_default_signals,
    )


def _open(pattern: str | None, name: dict[str, object], mode: str) -> IO[bytes] | None:
    return cast("IO[bytes]", open(filled(pattern, name), mode)) if pattern else None


def _default_signals() -> None:
    """What srun ignores, its tasks do not."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
