"""What the ledger says about each point: the decisions that no other file holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sparrow_lab.runs.ledger import Event


@dataclass
class Note:
    """The standing decisions about one point."""

    cancelled: bool = False
    floor: int = 0
    """Attempts up to this number no longer count: `retry` has forgiven them."""
    tokens: list[str] = field(default_factory=list)
    """Jobs that the scheduler was asked to run for it, oldest first."""
    held: str = ""
    """Why the last run of the sweep left it alone; empty when nothing held it."""


@dataclass
class Notes:
    """The ledger, summed up. `add` takes events in order."""

    points: dict[str, Note] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    """The last `opened` event: settings with which the sweep was last run."""

    def of(self, point_id: str) -> Note:
        """The note of a point; an empty one for a point that was never mentioned."""
        return self.points.setdefault(point_id, Note())

    def add(self, event: Event) -> None:
        """Take one event into account; kinds that decide nothing are passed over."""
        if event["event"] == "opened":
            self.opened = event
            for note in self.points.values():
                note.held = ""
            return
        point_id = event.get("point")
        if not isinstance(point_id, str):
            return
        note = self.of(point_id)
        match event["event"]:
            case "submitted":
                note.tokens.append(str(event.get("token")))
            case "cancelled":
                note.cancelled = True
            case "held":
                note.held = str(event.get("reason", ""))
            case "retry":
                note.cancelled = False
                note.held = ""
                note.floor = int(event.get("after", 0))


def read_notes(events: Iterable[Event]) -> Notes:
    """Sum up events, oldest first."""
    notes = Notes()
    for event in events:
        notes.add(event)
    return notes
