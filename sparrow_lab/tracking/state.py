"""What MLflow already holds of a task, remembered in a tag of its run.

It lives in MLflow itself, so that deleting the database forgets it too. The newest step is
remembered cell by cell, because a stage may still add metrics to it; older steps by a hash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparrow_lab.tracking.cells import Cell, digest, mark

VERSION = 1
"""Raised when the same files give other records: runs of an older version are built again."""
TAG = "mlflow.sparrow.imported"
"""With MLflow's own prefix, since its page hides such tags: this one is for the importer only."""
MARK = 8
"""Hex digits of a mark."""
MAX_MARKS = 6400
"""Longest `marks`; MLflow keeps 8000 characters of a tag."""


@dataclass(frozen=True)
class Imported:
    """The records of one run.

    Args:
        files: fingerprint of the files that were read; equal means that nothing is new.
        cells: how many values of steps before `last_step`, and `digest` is their hash.
        last_step: the newest step logged; None before the first.
        marks: marks of the values of `last_step`, joined.
        open: values were about to be logged, and whether they all were is not known.
        images: steps with a picture.
        artifacts: fingerprint of each artifact by name.
    """

    files: str = ""
    cells: int = 0
    digest: str = ""
    last_step: int | None = None
    marks: str = ""
    open: bool = False
    images: tuple[int, ...] = ()
    artifacts: Mapping[str, str] = field(default_factory=dict)

    def to_tag(self) -> str:
        """The tag's text."""
        return json.dumps({"version": VERSION, **self.__dict__}, separators=(",", ":"))

    @classmethod
    def from_tag(cls, text: str | None) -> Imported | None:
        """None for a tag that is missing, unreadable or of another version."""
        try:
            data: Any = json.loads(text or "")
            if data.pop("version") != VERSION:
                return None
            return cls(**{**data, "images": tuple(data["images"])})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def news(self, values: Sequence[Cell]) -> list[Cell] | None:
        """The values that are not in MLflow yet; None when it holds others and must be rebuilt.

        `values` are all values that MLflow should hold, by step.
        """
        if self.open:
            return None
        if self.last_step is None:
            return list(values)
        old = [cell for cell in values if cell.step < self.last_step]
        if len(old) != self.cells or digest(old) != self.digest:
            return None
        last = [cell for cell in values if cell.step == self.last_step]
        known = {self.marks[i : i + MARK] for i in range(0, len(self.marks), MARK)}
        if not known <= {mark(cell) for cell in last}:
            return None
        added = [cell for cell in last if mark(cell) not in known]
        return added + [cell for cell in values if cell.step > self.last_step]

    def holding(self, values: Sequence[Cell]) -> Imported:
        """The state once exactly `values` are logged.

        A newest step too wide for a tag (over 800 metrics) is remembered by hash alone: a
        metric added to it later means that the run is built again.
        """
        if not values:
            return replace(self, cells=0, digest="", last_step=None, marks="", open=False)
        step = values[-1].step
        marks = "".join(sorted(mark(cell) for cell in values if cell.step == step))
        if len(marks) > MAX_MARKS:
            step, marks = step + 1, ""
        old = [cell for cell in values if cell.step < step]
        return replace(
            self, cells=len(old), digest=digest(old), last_step=step, marks=marks, open=False
        )
