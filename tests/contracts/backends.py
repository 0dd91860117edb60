"""Where a sweep may run, behind one small interface: this machine, a pretended and a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.states import PointState, read_states

SLOW = 180.0
"""Seconds that anything may take: the machine may be busy with other things."""


@dataclass
class Backend:
    """A place to run. `site` is the cluster's site file, None for this machine."""

    name: str
    folder: Path
    site: Path | None = None
    said: list[str] = field(default_factory=list)
    """What each run of the command has printed."""
    _running: list[subprocess.Popen[str]] = field(default_factory=list)

    def sweep(self, name: str = "fake") -> SweepFolder:
        """The folder that the sweep of this test has or will have."""
        return SweepFolder(self.folder / "runs" / name)

    # ------------------------------------------------------------------ the command

    def start(self, plan: Plan, **options: Any) -> subprocess.Popen[str]:
        """Begin the command in a process of its own; with a cluster it soon comes back."""
        file = self.folder / f"plan-{len(self._running)}.json"
        file.write_text(json.dumps(plan.to_json()))
        settings = [f"{key}={json.dumps(value)}" for key, value in options.items()]
        place = str(self.site) if self.site else "-"
        command = [sys.executable, "-m", "tests.contracts.launch"]
        process = subprocess.Popen(
            [*command, str(self.sweep(plan.name).path), str(file), place, *settings],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def ended(self, process: subprocess.Popen[str]) -> int:
        """Wait until a command has come back; its exit code."""
        said, _ = process.communicate(timeout=SLOW)
        self.said.append(said)
        return process.returncode

    def submit(self, plan: Plan, **options: Any) -> int:
        """Run the command and wait for it alone; its exit code."""
        return self.ended(self.start(plan, **options))

    def run(self, plan: Plan, **options: Any) -> dict[str, str]:
        """Run the command, wait until nothing of the sweep runs; the states by id."""
        code = self.submit(plan, **options)
        assert code in (0, 1), self.said[-1]  # 1: points failed, on this machine
        return self.wait(plan)

    # ------------------------------------------------------------------ the sweep

    def wait(self, plan: Plan) -> dict[str, str]:
        """Wait until every command has ended and the queue is empty; the states by id."""
        for process in self._running:
            if process.returncode is None:
                self.ended(process)
        if self.site is not None:
            wait_until(lambda: self.queue() == [])
        return {i: s.state for i, s in self.states(plan.name).items()}

    def states(self, name: str = "fake") -> dict[str, PointState]:
        """The states as `status` sees them."""
        return read_states(self.sweep(name))

    def queue(self) -> list[str]:
        """The jobs in the cluster's queue; none on this machine."""
        if self.site is None:
            return []
        done = subprocess.run(["squeue", "-h", "-r", "-o", "%i"], capture_output=True, text=True)
        return done.stdout.split() if done.returncode == 0 else ["?"]

    def until_step(self, point_id: str, step: int, attempt: int = 1) -> None:
        """Wait until that attempt at a point has told of a step beyond `step`."""
        folder = self.sweep().point(point_id)

        def there() -> bool:
            attempts = folder.attempts()
            progress = attempts[attempt - 1].read_progress() if len(attempts) >= attempt else None
            return progress is not None and int(progress["done"]) > step

        wait_until(there)

    def worker(self, point_id: str) -> int:
        """The pid of the process that has claimed a point last. Jobs run on this machine."""
        claim = self.sweep().point(point_id).attempts()[-1].read_claim()
        assert claim is not None
        return int(claim["pid"])

    def interrupt(self, point_id: str) -> None:
        """Ask the worker to save and leave, as a scheduler does."""
        if self.site is None:
            os.kill(self.worker(point_id), signal.SIGUSR2)
            return
        job = self.states()[point_id].job
        subprocess.run(["scancel", "--signal=USR2", job], check=True)

    # ------------------------------------------------------------------ the end

    def close(self) -> None:
        """End what still runs; fails when a worker was left behind."""
        for process in self._running:
            if process.poll() is None:
                process.kill()
                process.communicate()
        left = processes_of(self.folder)
        for found in left:
            found.kill()
        assert not left, [p.pid for p in left]


def processes_of(folder: Path) -> list[psutil.Process]:
    """Live processes with a path below `folder` on their command line, but for Slurm's own."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        dead = process.info["status"] == psutil.STATUS_ZOMBIE
        ours = any(f"{folder}/runs/" in word for word in words)
        if ours and not dead and process.pid != os.getpid():
            found.append(process)
    return found


def wait_until(what: Callable[[], object], seconds: float = SLOW) -> None:
    """Wait until `what` is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
