"""The processes of a job, found by a mark in their environment: detached ones too."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

MARK = "FAKE_SLURM_TASK"
STEP = b"SLURM_STEP_ID="
"""Whoever has this in its environment was started by srun."""


def mark(folder: Path, task: sqlite3.Row) -> str:
    """The value of `MARK` of one start of a task."""
    return f"{folder}:{task['job']}:{task['idx']}:{task['restarts']}"


def send(
    folder: Path, task: sqlite3.Row, number: int, steps: bool = True, shell: bool = True
) -> int:
    """Send a signal to a task's processes and return to how many.

    `steps`: those that srun started, with all their children; `shell`: the script's.
    """
    count = 0
    for pid, in_step in _find(mark(folder, task)):
        if steps if in_step else shell:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                count += 1
    return count


def kill_everything(folder: Path) -> None:
    """End all processes of all jobs of this folder."""
    for pid, _ in _find(f"{folder}:"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def filled(pattern: str, values: dict[str, object]) -> str:
    """A file name with Slurm's `%A`, `%a`, `%j`, `%x` and so on filled in."""
    return re.sub(r"%(\d*)([a-zA-Z%])", lambda m: str(values.get(m[2], m[0])), pattern)


def _find(start: str) -> Iterator[tuple[int, bool]]:
    """Pids of living processes whose mark is `start`, or begins so where that ends in a colon."""
    wanted = f"{MARK}={start}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "environ").read_bytes().split(b"\0")
            if any(w.startswith(wanted) if start.endswith(":") else w == wanted for w in words):
                yield int(entry.name), any(word.startswith(STEP) for word in words)
