"""A job on this machine: a submission of one or several points, ours or found again."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import is_alive
from sparrow_lab.stages import run_task
from sparrow_lab.sweep import processes

if TYPE_CHECKING:
    from submitit.local.local import LocalJob

StopReason = Literal["", "asked", "timeout", "cancelled"]

ASK_EVERY_S = 1.0
"""Time between two requests to stop: a worker that is still starting misses the first."""


@dataclass
class Job:
    """One submission. `handle` is submitit's; None for a job that another launcher started."""

    sweep: SweepFolder
    token: str
    points: list[str]
    threads: int = 1
    handle: LocalJob[Any] | None = None
    claims: list[AttemptFolder] = field(default_factory=list)
    """Attempts by which a job without a known token was found."""
    started: float = field(default_factory=time.time)
    gpu: bool = False
    """Whether a point of it asks for a GPU."""
    stop_reason: StopReason = ""
    asked_at: float = 0.0
    _asked_last: float = 0.0

    def alive(self) -> bool:
        """Whether a process of the job that can still write a result lives."""
        if self.handle is not None and not self.handle.done():
            return True
        claims = self.attempts()
        if claims:
            return any(is_alive(attempt.read_claim()) for attempt in claims)
        return bool(self.token) and bool(processes.live_tokens({self.token}))

    def attempts(self) -> list[AttemptFolder]:
        """The attempts that this job has claimed, in the order of its points."""
        if not self.token:
            return self.claims
        found = (self.attempt_at(point_id) for point_id in self.points)
        return [attempt for attempt in found if attempt is not None]

    def attempt_at(self, point_id: str) -> AttemptFolder | None:
        """The attempt that this job claimed at a point; None when it has not come to it."""
        if not self.token:
            return next((a for a in self.claims if a.path.parent.parent.name == point_id), None)
        for attempt in reversed(self.sweep.point(point_id).attempts()):
            claim = attempt.read_claim()
            if claim is not None and claim.get("token") == self.token:
                return attempt
        return None

    def ask_to_stop(self, reason: StopReason) -> None:
        """Ask the worker to save and leave; called again and again until it has gone."""
        now = time.monotonic()
        if not self.stop_reason:
            self.stop_reason, self.asked_at = reason, now
        if now - self._asked_last < ASK_EVERY_S:
            return
        self._asked_last = now
        claims = [attempt.read_claim() for attempt in self.attempts()]
        workers = {int(claim["pid"]) for claim in claims if claim and is_alive(claim)}
        if workers:
            # The claim is made after the handlers are set: USR2 is certain to be understood.
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR2)
            return
        for process in processes.find({self.token}).get(self.token, []) if self.token else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the job at once, also what its worker has left behind."""
        import psutil

        found = processes.left_behind(self.token) if self.token else []
        for attempt in self.attempts():
            claim = attempt.read_claim()
            if claim and is_alive(claim):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(int(claim["pid"])))
        processes.kill_all(found)

    def last_words(self) -> str:
        """The last line that the job printed outside of any attempt; empty when none."""
        lines: list[str] = []
        folder = self.sweep.jobs / self.token
        for log in sorted(folder.glob("*.log")) + sorted(folder.glob("*.out")):
            with contextlib.suppress(OSError):
                text = log.read_text(errors="replace")
                lines += [line for line in text.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def full_log(self) -> str:
        """Everything that the job printed outside of its attempts."""
        folder = self.sweep.jobs / self.token
        logs = sorted(folder.glob("*.log")) + sorted(folder.glob("*.out"))
        return "".join(log.read_text(errors="replace") for log in logs)


def start_job(
    sweep: SweepFolder,
    token: str,
    points: Sequence[str],
    threads: int,
    stages: Mapping[str, str] | None = None,
    function: Callable[..., None] = run_task,
) -> Job:
    """Hand the points to submitit as one job with its own folder, named by its token."""
    from sparrow_lab.sweep.detached import submit

    table = dict(stages) if stages is not None else None
    arguments = (str(sweep.path), list(points), table, token)
    handle = submit(sweep.jobs / token, threads, function, *arguments)
    return Job(sweep, token, list(points), threads, handle)
