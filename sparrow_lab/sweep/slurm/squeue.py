"""What waits and runs of this project's jobs, from one call of squeue.

A job is known by its name, which carries the token of its submission, and by its index in
the array. So a job is found whether or not its number was written down.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from sparrow_lab.sweep.slurm.programs import SlurmError, call

PREFIX = "sl-"
"""Before the token in a job's name."""

FORMAT = "%i|%F|%K|%T|%r|%N|%j"
"""Id, id of the array, index, state, reason, node, name: the name last, as it is the one
that a user could give a strange form."""

RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING",
     "CONFIGURING"}
)  # fmt: skip
GONE = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "DEADLINE",
     "OUT_OF_MEMORY", "REVOKED"}
)  # fmt: skip
"""squeue may still show these for a moment. Whatever is in neither set waits, also states
that this version has never heard of."""
KNOWN_WAITING = frozenset(
    {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT",
     "PREEMPTED"}
)  # fmt: skip

Phase = Literal["pending", "running"]


@dataclass(frozen=True)
class Queued:
    """One element of an array that waits or runs."""

    job: str
    """Its id, `120_4`, as scancel takes it."""
    array: str
    token: str
    index: int
    state: str
    reason: str = ""
    node: str = ""

    @property
    def phase(self) -> Phase:
        """Whether it has a node."""
        return "running" if self.state in RUNNING else "pending"

    @property
    def why(self) -> str:
        """One line on why it waits; empty while it runs."""
        if self.phase == "running":
            return ""
        if self.state not in KNOWN_WAITING:
            return f"Slurm says {self.state}"
        return REASONS.get(self.reason, self.reason)


REASONS = {
    "Dependency": "waits for what it needs",
    "JobArrayTaskLimit": "waits for the throttle",
    "BeginTime": "waits to start again",
    "Priority": "waits its turn",
    "Resources": "waits for free nodes",
    "None": "",
    "PartitionConfig": "asks for what no node of its partition has (PartitionConfig)",
    "PartitionTimeLimit": "asks for more time than its partition gives (PartitionTimeLimit)",
    "BadConstraints": "asks for what no node has (BadConstraints)",
    "JobHeldUser": "is held in the queue: 'scontrol release' lets it go (JobHeldUser)",
    "JobHeldAdmin": "is held in the queue by an administrator (JobHeldAdmin)",
}
"""squeue's reasons in words; others are shown as they are."""


@dataclass(frozen=True)
class Queue:
    """The elements in the queue by token and index, and what could not be told."""

    elements: dict[tuple[str, int], Queued] = field(default_factory=dict)
    error: str = ""
    """Why squeue did not answer; then `elements` is empty and says nothing."""

    def tokens(self) -> set[str]:
        """The submissions that have something in the queue."""
        return {token for token, _ in self.elements}

    def of(self, token: str) -> list[Queued]:
        """What is in the queue of one submission."""
        return [q for (t, _), q in self.elements.items() if t == token]


def job_name(token: str) -> str:
    """The name of a submission's jobs."""
    return PREFIX + token


def read_queue() -> Queue:
    """Ask squeue once for the jobs of this user; never raises."""
    try:
        return Queue(parse(call(["squeue", "-h", "-r", "-u", user(), f"--format={FORMAT}"])))
    except SlurmError as error:
        return Queue(error=str(error))


def parse(text: str) -> dict[tuple[str, int], Queued]:
    """Read squeue's lines; those of other programs, and broken ones, are passed over."""
    found: dict[tuple[str, int], Queued] = {}
    for queued in filter(None, map(_line, text.splitlines())):
        known = found.get((queued.token, queued.index))
        # a job that goes on under another number: the one that runs counts
        if known is None or (known.phase == "pending" and queued.phase == "running"):
            found[queued.token, queued.index] = queued
    return found


def user() -> str:
    """The name of the caller, or the number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def cancel(jobs: Iterable[str], *options: str) -> None:
    """scancel, a few hundred at a time. Raises SlurmError."""
    todo = list(jobs)
    while todo:
        part, todo = todo[:400], todo[400:]
        call(["scancel", *options, *part])


def _line(line: str) -> Queued | None:
    parts = line.strip().split("|", 6)
    if len(parts) < 7 or not parts[6].startswith(PREFIX) or not parts[2].isdecimal():
        return None
    job, array, index, state, reason, node, name = parts
    state = state.split()[0] if state else "UNKNOWN"
    if state in GONE:
        return None
    return Queued(job, array, name.removeprefix(PREFIX), int(index), state, reason, node)
