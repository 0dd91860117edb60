"""What a stage is given: its point, its folder, and the question whether to go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.stages.signals import StopFlag

if TYPE_CHECKING:
    from sparrow_lab.config.schema import PointConfig

CLAIM_CHECK_S = 0.5
"""How often the folder is looked at for a later attempt."""

PROGRESS_S = 0.5
"""Least time between two writes of progress.json."""

REMADE = "the sweep's command makes it again, then 'sparrow-lab retry' this point"
"""What to do about a file of a point that is done and can no longer be read."""


class Interrupted(Exception):
    """A stage was asked to stop and has saved what it needs to go on from there."""


@dataclass
class StageContext:
    """One attempt at one stage of one point.

    A stage calls `should_stop` at each step boundary, and when it is true saves a
    checkpoint (not if `still_owner` is false: another attempt has taken over) and
    raises `Interrupted`. `previous` are the earlier attempts, newest last: where
    checkpoints to go on from lie.
    """

    sweep: SweepFolder
    folder: PointFolder
    point: PlannedPoint
    config: PointConfig
    attempt: AttemptFolder
    stop: StopFlag = field(default_factory=StopFlag)
    previous: list[AttemptFolder] = field(default_factory=list)
    _checked: float = field(default=0.0, repr=False)
    _written: float = field(default=0.0, repr=False)

    def needed(self, stage: str) -> PointFolder:
        """The folder of the point that made what this one builds on; aliases are followed.

        Raises KeyError for a stage that this point does not need.
        """
        return self.sweep.point(self.point.needs[stage]).followed()

    def made(self, folder: PointFolder, name: str) -> Path:
        """The JSON file `name` of a point that is done.

        Raises:
            UserError: it is missing or no whole JSON object; says what to do.
        """
        path = folder.path / name
        if not isinstance(read_json(path), dict):
            what = "is damaged: it is no whole JSON object" if path.exists() else "is missing"
            raise UserError(f"{name} {what}; delete result.json beside it, {REMADE}", str(path))
        return path

    def should_stop(self) -> bool:
        """True once a stop signal came or a later attempt claimed the point."""
        now = time.monotonic()
        if not self.stop and now - self._checked >= CLAIM_CHECK_S:
            self._checked = now
            if not self.attempt.still_owner():
                self.stop.set("a later attempt has claimed this point")
        return bool(self.stop)

    def still_owner(self) -> bool:
        """False once a later attempt claimed the point: then write nothing more."""
        return self.attempt.still_owner()

    def check(self) -> None:
        """Raise `Interrupted` when asked to stop: for places where there is nothing to save."""
        if self.should_stop():
            raise Interrupted(self.stop.reason)

    def progress(self, done: int, total: int, note: str = "") -> None:
        """Tell the live table how far this is; written at most twice a second."""
        now = time.monotonic()
        if now - self._written >= PROGRESS_S or done >= total:
            self._written = now
            state = {"done": int(done), "total": int(total), "note": note, "time": time.time()}
            write_json(self.attempt.progress_path, state, durable=False)
