"""The attempts of an element's points, as this start of this job sees them: whose they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import this_process
from sparrow_lab.sweep.slurm.allocation import Allocation


@dataclass(frozen=True)
class Tries:
    """Attempts under a sweep's points; `here` is the job, `token` its submission."""

    sweep: SweepFolder
    here: Allocation
    token: str

    def result(self, point_id: str) -> dict[str, Any] | None:
        """The point's result, if it is done."""
        return self.sweep.point(point_id).read_result()

    def latest(self, point_id: str) -> AttemptFolder | None:
        """The last attempt, anybody's."""
        attempts = self.sweep.point(point_id).attempts()
        return attempts[-1] if attempts else None

    def number(self, point_id: str) -> int:
        """The last attempt's number; 0 when there is none."""
        latest = self.latest(point_id)
        return latest.number if latest else 0

    def is_mine(self, point_id: str) -> bool:
        """Whether the last attempt was claimed by this start of this job."""
        latest = self.latest(point_id)
        claim = (latest.read_claim() or {}) if latest else {}
        return claim.get("slurm") == self.here.to_json()

    def superseded(self, attempt: AttemptFolder) -> bool:
        """Whether an attempt without an end is another job's, or a later start's of this one."""
        claim = (attempt.read_claim() or {}).get("slurm") or {}
        earlier = (claim.get("array"), claim.get("index")) == (
            self.here.array,
            self.here.index,
        ) and int(claim.get("restart") or 0) <= self.here.restart
        return not earlier and attempt.read_failure() is None

    def claim(self, point_id: str) -> AttemptFolder:
        """An attempt for a record only: why the point was not begun."""
        owner = {**this_process(), "token": self.token, "slurm": self.here.to_json()}
        return self.sweep.point(point_id).new_attempt(owner)
