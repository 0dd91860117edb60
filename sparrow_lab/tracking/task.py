"""One task of the plan as its folder stands now: state, times, attempts. Reads files only."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import PointFolder
from sparrow_lab.runs.notes import Note
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.runs.process import is_alive, on_this_host

Status = Literal["SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED"]
"""MLflow's words. KILLED: cancelled by hand, or interrupted and not gone on with yet."""

SILENT_S = 900.0
"""An attempt of another host counts as dead when its files have not changed for so long."""
UNREAD = frozenset({"log.txt", "progress.json"})
"""Files that change all the time and carry nothing for MLflow."""


@dataclass(frozen=True)
class Task:
    """A planned point and what its folder says.

    `failure` is one line, empty if none. `cancelled`: by hand, or held on a cluster; it will
    not go on by itself.
    """

    point: PlannedPoint
    folder: PointFolder
    status: Status
    result: dict[str, Any] | None
    attempts: tuple[AttemptFolder, ...]
    failure: str = ""
    cancelled: bool = False

    @property
    def live(self) -> bool:
        """Whether more may still be written."""
        return self.status == "RUNNING"

    @property
    def alias_of(self) -> str | None:
        """The point that ran, when this one is another name of the same run."""
        return self.result.get("alias_of") if self.result else None

    @property
    def started(self) -> float:
        """Seconds since 1970: the first claim, or what the result says of a task without one."""
        for attempt in self.attempts:
            claim = attempt.read_claim() or {}
            if isinstance(claim.get("time"), (int, float)):
                return float(claim["time"])
            return attempt.claim_path.stat().st_mtime
        return float((self.result or {}).get("started") or 0.0)

    @property
    def ended(self) -> float | None:
        """Seconds since 1970; None while it runs or when nobody knows."""
        if self.result is not None:
            return float(self.result.get("finished") or 0.0) or None
        failure = self.attempts[-1].read_failure() if self.attempts and not self.live else None
        return float(failure["time"]) if failure and failure.get("time") else None

    def fingerprint(self) -> str:
        """Changes when a file changes that the importer reads, or when the state does."""
        total = hashlib.sha256(f"{self.status} {self.failure}\n".encode())
        for path in self._files():
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            total.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return total.hexdigest()[:16]

    def _files(self) -> Iterator[Path]:
        folders = [self.folder.path]
        if self.result is None:
            for attempt in self.attempts:
                folders += [attempt.path, attempt.histograms]
        for folder in folders:
            yield from files(folder)


def files(folder: Path) -> list[Path]:
    """The plain files of a folder that are whole and matter, by name; none if it is missing."""
    try:
        entries = sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        path
        for path in entries
        if path.name not in UNREAD and not path.name.startswith(".") and path.is_file()
    ]


def read_task(point: PlannedPoint, folder: PointFolder, note: Note) -> Task:
    """The task as it stands; `note` holds what the ledger says of it."""
    attempts = tuple(folder.attempts())
    result = folder.read_result()
    if result is not None:
        return Task(point, folder, "FINISHED", result, attempts)
    latest = attempts[-1] if attempts else None
    failure = latest.read_failure() if latest else None
    if latest and failure is None and is_running(latest):
        return Task(point, folder, "RUNNING", None, attempts)
    if latest and latest.number > note.floor:
        failure = failure or {"kind": "lost", "message": "the worker vanished"}
        held = failure.get("kind") == "held"  # a cluster's job came, saw, and did not begin
        stopped = held or note.cancelled or failure.get("kind") == "interrupted"
        status: Status = "KILLED" if stopped else "FAILED"
        line = failure_line(failure)
        return Task(point, folder, status, None, attempts, line, held or note.cancelled)
    # Never begun, or begun and forgiven by `retry`.
    status = "KILLED" if note.cancelled else "SCHEDULED"
    return Task(point, folder, status, None, attempts, cancelled=note.cancelled)


def failure_line(failure: dict[str, Any]) -> str:
    """`error: RuntimeError: no memory`: kind and message; the type unless it is said already."""
    kind, name = str(failure.get("kind", "error")), str(failure.get("type") or "")
    message = str(failure.get("message", "")).strip()
    said = name if name and not message.startswith(name) else ""
    return ": ".join(part for part in (kind, said, message) if part)


def is_running(attempt: AttemptFolder) -> bool:
    """Whether the attempt's process lives; for one of another host, whether its files move."""
    claim = attempt.read_claim()
    if not claim or on_this_host(claim):
        return is_alive(claim)
    try:
        newest = max(entry.stat().st_mtime for entry in attempt.path.iterdir())
    except (OSError, ValueError):
        return False
    return time.time() - newest < SILENT_S
