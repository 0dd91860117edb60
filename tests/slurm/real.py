"""The test cluster as the tests see it: its commands, its daemons, and how to break them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "slurm" / "test-cluster"
STATE = Path("/tmp/sparrow-slurm")


class RealSlurm:
    """The running cluster in `STATE`. Its commands need `SLURM_CONF`, which the fixture sets."""

    conf = STATE / "etc" / "slurm.conf"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep the tests of another run on this machine waiting: each needs the whole cluster."""
        with (STATE / "tests.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def pids(self) -> dict[str, int | None]:
        """The pid of each daemon, None for one that does not run."""
        said = subprocess.run([PROGRAM, "status", "--json"], capture_output=True, text=True)
        pids: dict[str, int | None] = json.loads(said.stdout)
        return pids

    def repair(self) -> None:
        """Start every daemon that does not run, and wait until the nodes take jobs."""
        run(str(PROGRAM), "start")

    def kill(self, daemon: str) -> None:
        """SIGKILL a daemon: munged, mariadbd, slurmdbd, slurmctld, slurmd.n1, slurmd.n2.

        slurmctld writes its state down up to 5 s late, and would come back believing in what
        was before; so it is made to write, and killed at once.
        """
        if daemon == "slurmctld":
            state = STATE / "ctld" / "job_state"
            before = state.stat().st_mtime_ns
            run("scontrol", "reconfigure")
            wait_for(lambda: state.stat().st_mtime_ns > before, 15)
        pid = self.pids()[daemon]
        assert pid is not None, f"{daemon} does not run"
        os.kill(pid, signal.SIGKILL)

    def sbatch(self, script: str, *options: str) -> str:
        """Submit a shell script and return the job's id."""
        return run("sbatch", "--parsable", *options, stdin=f"#!/bin/bash\n{script}\n").strip()

    def state(self, job: str) -> str:
        """The job's state in the queue; empty when it has left it."""
        return run("squeue", "-h", "-r", "-j", job, "-o", "%T").strip()

    def ended(self, job: str) -> bool:
        """Whether the job is no more in the queue."""
        return self.state(job) == ""

    def give_nodes_back(self) -> None:
        """Take nodes that Slurm has drained or given up into use again, as an operator would.

        It drains one on which it finds a job that it has just requeued ("Duplicate jobid"), as
        happens when it preempts soon after its own end.
        """
        for line in run("sinfo", "-h", "-N", "-p", "main", "-o", "%N %t").splitlines():
            node, state = line.split()
            if state.startswith(("down", "drain", "drng")):
                run("scontrol", "update", f"nodename={node}", "state=resume")

    def make_whole(self) -> None:
        """Start what is missing, use every node, and take every job out of the queue."""
        if None in self.pids().values():
            self.repair()
        self.give_nodes_back()
        if run("squeue", "-h"):
            run("scancel", "--user=root")
            wait_for(lambda: run("squeue", "-h") == "", 40)


def run(*command: str, stdin: str | None = None) -> str:
    """Run a command and return what it printed; it must end with 0."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def wait_for(what: Callable[[], object], seconds: float) -> float:
    """Wait until `what` is true and return how long it took; fail after so many seconds."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds, "waited too long"
        time.sleep(0.05)
    return time.monotonic() - began
