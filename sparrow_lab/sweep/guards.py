"""What is checked before anything starts, and what stops a stage that cannot succeed."""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from sparrow_lab.errors import UserError
from sparrow_lab.runs.writable import check_writable, nearest_folder

LEAST_FREE_BYTES = 200 * 2**20
"""Below this a sweep is not begun: checkpoints and event files would be cut short."""

SAME_FAILURES = 3
"""So many points with one and the same failure, and no success, hold the rest of a stage."""


def check_folder(path: Path, least_free: int = LEAST_FREE_BYTES) -> None:
    """Make the sweep's folder and see that it can be written and has room.

    Raises UserError that names the folder when it cannot be made or written, or when
    the disk has fewer than `least_free` bytes, or no inodes, left. Nothing is left behind then.
    """
    check_writable(path, str(path))
    try:
        there = nearest_folder(path)
        free = shutil.disk_usage(there).free
        inodes = os.statvfs(there)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write into the output folder: {reason}", str(path)) from error
    if free < least_free:
        raise UserError(
            f"only {free / 2**20:.0f} MB free on this disk; a sweep needs at least "
            f"{least_free / 2**20:.0f} MB",
            str(path),
        )
    if inodes.f_files and not inodes.f_favail:
        raise UserError("this disk has no room for another file (inodes)", str(path))
    path.mkdir(parents=True, exist_ok=True)


@dataclass
class Breaker:
    """Holds the rest of a stage when its first points all fail for one reason.

    Failures are told apart by type and message with the numbers taken out. One success
    of a stage opens it for good: from then on failures are a matter of the points.
    """

    limit: int = SAME_FAILURES
    _failed: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    _open: set[str] = field(default_factory=set)

    def failed(self, stage: str, point_id: str, message: str) -> None:
        """Count a point's final failure."""
        self._failed[stage, signature(message)].add(point_id)

    def succeeded(self, stage: str) -> None:
        """A point of the stage is done: never hold it."""
        self._open.add(stage)

    def holds(self, stage: str) -> str:
        """Why the stage is held; empty when it is not."""
        if stage in self._open:
            return ""
        for (failed_stage, what), points in self._failed.items():
            if failed_stage == stage and len(points) >= self.limit:
                return f"{len(points)} points of this stage failed alike: {what}"
        return ""


def signature(message: str) -> str:
    """A failure's message without what differs from point to point."""
    return re.sub(r"0x[0-9a-f]+|[0-9a-f]{12,}|\d+(\.\d+)?", "#", message)


def default_parallel(threads: int) -> int:
    """Workers of so many threads that fit the cores which this process may use; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    return max(1, cores // max(1, threads))
