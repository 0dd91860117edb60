"""Job ids as people and programs write them: 120, 120_4, 120_[0-3,7%2]; and states."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

from sparrow_lab.fake_slurm.store import Store

WHOLE = -1
"""The index of a job that is no array."""

COMPACT = {
    "PENDING": "PD", "RUNNING": "R", "COMPLETING": "CG", "COMPLETED": "CD", "CANCELLED": "CA",
    "FAILED": "F", "TIMEOUT": "TO", "PREEMPTED": "PR", "NODE_FAIL": "NF", "SUSPENDED": "S",
    "OUT_OF_MEMORY": "OOM",
}  # fmt: skip
ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED")
"""States of jobs that are still in the queue."""

_ID = re.compile(r"(\d+)(?:_(?:(\d+)|\[([\d,\-]+)(?:%\d+)?\]))?")
_SPLIT = re.compile(r",(?![^\[]*\])")


def indices(text: str) -> list[int]:
    """`0-3,7` as numbers. Raises ValueError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition(":")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def select(store: Store, words: Iterable[str]) -> tuple[list[sqlite3.Row], list[str]]:
    """The tasks that ids name, and the ids that name none.

    An element of an array may also be named by the id of its own.
    """
    found: list[sqlite3.Row] = []
    unknown: list[str] = []
    for word in words:
        for text in _SPLIT.split(word):
            tasks = _tasks(store, text)
            found += tasks
            if not tasks:
                unknown.append(text)
    return found, unknown


def _tasks(store: Store, text: str) -> list[sqlite3.Row]:
    match = _ID.fullmatch(text)
    if match is None:
        return []
    job = int(match[1])
    if match[2] is None and match[3] is None:
        whole = store.rows("select * from tasks where job = ? order by idx", job)
        return whole or store.rows("select * from tasks where raw = ?", job)
    wanted = set(indices(match[2] or match[3]))
    of_job = store.rows("select * from tasks where job = ? order by idx", job)
    return [task for task in of_job if task["idx"] in wanted]


def spelled(job: int, index: int) -> str:
    """`120_4`, or `120` for a job that is no array."""
    return str(job) if index == WHOLE else f"{job}_{index}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as Slurm writes them: 0-3,7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
