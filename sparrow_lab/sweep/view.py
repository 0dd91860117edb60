"""What the launcher tells its user; the forms for a terminal are in `live`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.states import PointState

TEXT = {
    "found": "still running",
    "planned": "proposed",
    "started": "started",
    "done": "done",
    "same": "done",
    "again": "failed, trying again",
    "failed": "failed",
    "lost": "lost",
    "interrupted": "interrupted",
    "held": "held",
    "cancelled": "cancelled",
}
"""How each kind of note reads."""


class View(Protocol):
    """Where a launcher shows what happens."""

    def note(self, kind: str, points: Sequence[PlannedPoint], reason: str = "") -> None:
        """Something happened to points; `kind` is a key of `TEXT`."""

    def update(
        self,
        sweep: SweepFolder,
        states: Mapping[str, PointState],
        jobs: Sequence[Job],
        options: Options,
    ) -> None:
        """Called several times a second with the present state."""

    def stopping(self, hard: bool, workers: int, grace_s: float) -> None:
        """A stop was asked for; called until the workers have gone."""

    def close(self) -> None:
        """The run has ended."""


class QuietView:
    """Shows nothing."""

    def note(self, kind: str, points: Sequence[PlannedPoint], reason: str = "") -> None:
        """Do nothing."""

    def update(
        self,
        sweep: SweepFolder,
        states: Mapping[str, PointState],
        jobs: Sequence[Job],
        options: Options,
    ) -> None:
        """Do nothing."""

    def stopping(self, hard: bool, workers: int, grace_s: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
