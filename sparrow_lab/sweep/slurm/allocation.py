"""The job that this process runs in, and what it may ask Slurm to do with it.

Everything is asked from inside the job, so the programs are shielded: Slurm signals every
process of a job, and a request that dies of the signal it is about would not arrive.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparrow_lab.runs.process import shielded
from sparrow_lab.sweep.slurm.chunk import Chunk, continue_command
from sparrow_lab.sweep.slurm.programs import SlurmError, call

ASK_S = 10.0
"""A job that has to leave waits no longer for one answer."""
TRIES = 3


@dataclass(frozen=True)
class Allocation:
    """`job` is this element's own number, `array` that of its array; `restart` counts how often
    Slurm has started it before."""

    job: str
    array: str
    index: int
    restart: int = 0

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Allocation:
        """Read Slurm's variables. Raises KeyError outside of an array's element."""
        return cls(
            environment["SLURM_JOB_ID"],
            environment["SLURM_ARRAY_JOB_ID"],
            int(environment["SLURM_ARRAY_TASK_ID"]),
            int(environment.get("SLURM_RESTART_COUNT") or 0),
        )

    @property
    def name(self) -> str:
        """`120_4`."""
        return f"{self.array}_{self.index}"

    def to_json(self) -> dict[str, Any]:
        """What a claim keeps."""
        return {
            "job": self.job,
            "array": self.array,
            "index": self.index,
            "restart": self.restart,
        }

    def still_wanted(self) -> bool:
        """Whether Slurm still counts the job as running: it is preempted, or a node goes down,
        and it would not start again by itself. False when it is cancelled, requeued or over,
        and when Slurm does not answer."""
        try:
            with shielded():
                text = call(["scontrol", "show", "job", "-o", self.name], limit_s=ASK_S)
        except SlurmError:
            return False
        state = re.search(r"\bJobState=(\S+)", text)
        return state is not None and state[1] in ("RUNNING", "SUSPENDED")

    def requeue(self) -> str:
        """Ask Slurm to start this job again; empty when it will, else why not."""
        return _several_times(["scontrol", "requeue", self.name])

    def resubmit(self, chunk: Chunk, after: str | None = None) -> str:
        """Submit this element once more, to begin after job `after` (by default this one); empty
        when that was taken, else why not."""
        return _several_times(continue_command(chunk, self.index, after or self.name))


def _several_times(command: list[str]) -> str:
    """Call a program; again where the error may pass. Empty, or the last error."""
    for attempt in range(1, TRIES + 1):
        try:
            with shielded():
                call(command, limit_s=ASK_S, bound=False)
            return ""
        except SlurmError as error:
            said = str(error)
            if not error.passing or attempt == TRIES:
                return said
            time.sleep(1)
    return said
