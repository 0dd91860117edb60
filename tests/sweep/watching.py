"""Looking at launchers and workers from outside: waiting, finding, killing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import is_alive


def workers_under(folder: Path) -> list[psutil.Process]:
    """Live processes of submitit with a path below `folder` on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        dead = process.info["status"] == psutil.STATUS_ZOMBIE
        ours = any(str(folder) in w for w in words) and any("submitit" in w for w in words)
        if ours and not dead and process.pid != os.getpid():
            found.append(process)
    return found


def wait_until(what: Callable[[], object], seconds: float = 60) -> None:
    """Wait until `what` is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def start_launcher(sweep: SweepFolder, *options: str) -> subprocess.Popen[str]:
    """A launcher in a process of its own, as the command line would be; see `launch_fake`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.sweep.launch_fake", str(sweep.path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(launcher: subprocess.Popen[str], seconds: float = 120) -> tuple[int, str]:
    """Wait for a launcher; its exit code and what it said."""
    said, _ = launcher.communicate(timeout=seconds)
    return launcher.returncode, said


def step_of(sweep: SweepFolder, point_id: str) -> int:
    """The last step that a running point has told; -1 before the first."""
    attempts = sweep.point(point_id).attempts()
    progress = attempts[-1].read_progress() if attempts else None
    return int(progress["done"]) if progress else -1


def worker_pid(sweep: SweepFolder, point_id: str) -> int | None:
    """The pid of the live worker of a point's last attempt."""
    attempts = sweep.point(point_id).attempts()
    claim = attempts[-1].read_claim() if attempts else None
    return int(claim["pid"]) if claim and is_alive(claim) else None


def kill_worker(sweep: SweepFolder, point_id: str, number: int = signal.SIGKILL) -> None:
    """Wait for the point's worker and send it a signal."""
    wait_until(lambda: worker_pid(sweep, point_id))
    pid = worker_pid(sweep, point_id)
    assert pid is not None
    os.kill(pid, number)
