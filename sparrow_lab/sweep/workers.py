"""The jobs of a launcher: whether another one fits, and how those leave that have to."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.gpu import wants_gpu
from sparrow_lab.sweep.guards import default_parallel
from sparrow_lab.sweep.jobs import Job, StopReason
from sparrow_lab.sweep.options import Options

TICK_S = 0.2


@dataclass
class Workers:
    """What runs on this machine. `options` say how many at once, how long, and the grace."""

    options: Options
    jobs: list[Job] = field(default_factory=list)

    def room(self, point: PlannedPoint) -> bool:
        """Whether one more worker fits."""
        if self.options.parallel is not None:
            return len(self.jobs) < self.options.parallel
        if wants_gpu(point) and any(job.gpu for job in self.jobs):
            return False  # how many fit a GPU's memory is for the user to say
        used = sum(job.threads for job in self.jobs)
        return not self.jobs or used + threads_of(point) <= default_parallel(1)

    def keep_time(self, cancelled: Callable[[Job], bool]) -> None:
        """Ask jobs beyond their time, or cancelled from elsewhere, to leave."""
        for job in self.jobs:
            over = time.time() - job.started > 60 * self.options.timeout_min
            if job.stop_reason or over:
                self._press(job, "timeout" if over else job.stop_reason)
            elif cancelled(job):
                self._press(job, "cancelled")

    def stop(self, hard: bool) -> None:
        """Ask all to save and leave; with `hard` end them at once."""
        for job in self.jobs:
            if hard:
                job.kill()
            else:
                self._press(job, "asked")

    def leave(self, hard: Callable[[], bool]) -> None:
        """Ask all to leave and wait for the grace, or until `hard`; then end what is left."""
        deadline = time.monotonic() + self.options.grace_s
        while any(job.alive() for job in self.jobs) and time.monotonic() < deadline:
            if hard():
                break
            for job in self.jobs:
                job.ask_to_stop("asked")
            time.sleep(TICK_S)
        for job in self.jobs:
            job.kill()

    def _press(self, job: Job, reason: StopReason) -> None:
        """Ask, and after the grace kill."""
        job.ask_to_stop(reason)
        if time.monotonic() - job.asked_at > self.options.grace_s:
            job.kill()


def threads_of(point: PlannedPoint) -> int:
    """CPU threads of a point's worker."""
    return int(point.config.get("threads", 1))
