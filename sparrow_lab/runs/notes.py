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
    chunk: str | None = None
    """Token of the last submission to a cluster that holds it; it alone may run the point."""
    index: int = 0
    """Which element of that submission."""


@dataclass
class Submission:
    """One array that a cluster was asked to run, or was about to be."""

    token: str
    stage: str
    elements: list[list[str]]
    """Ids of the points by index."""
    time: float = 0.0
    job: str | None = None
    """The cluster's number for it; None when that was never written down."""
    refused: bool = False
    """The cluster said no, or a later run found that it never got there."""
    start: str = ""
    """Under which name its jobs leave marks until their workers begin; empty: they do not."""


@dataclass
class Notes:
    """The ledger, summed up. `add` takes events in order."""

    points: dict[str, Note] = field(default_factory=dict)
    opened: dict[str, Any] = field(default_factory=dict)
    """The last `opened` event: settings with which the sweep was last run."""
    submissions: dict[str, Submission] = field(default_factory=dict)
    """What was handed to a cluster, by token, oldest first."""

    def of(self, point_id: str) -> Note:
        """The note of a point; an empty one for a point that was never mentioned."""
        note = self.points.get(point_id)
        if note is None:
            note = self.points[point_id] = Note()
        return note

    def submission_of(self, point_id: str) -> Submission | None:
        """The submission to a cluster that holds the point; None when none does."""
        note = self.points.get(point_id)
        found = self.submissions.get(note.chunk) if note is not None and note.chunk else None
        return found if found is not None and not found.refused else None

    def add(self, event: Event) -> None:
        """Take one event into account; kinds that decide nothing are passed over."""
        if event["event"] == "opened":
            self.opened = event
            for note in self.points.values():
                note.held = ""
            return
        point_id = event.get("point")
        if not isinstance(point_id, str):
            self._add_submission(event)
            return
        note = self.of(point_id)
        match event["event"]:
            case "submitted":
                note.tokens.append(str(event.get("token")))
                note.chunk = None  # a worker of this machine has it from here on
            case "cancelled":
                note.cancelled = True
            case "held":
                note.held = str(event.get("reason", ""))
            case "retry":
                note.cancelled = False
                note.held = ""
                note.floor = int(event.get("after", 0))
                note.chunk = None  # it is to be submitted anew

    def _add_submission(self, event: Event) -> None:
        """`submitting` is written before a cluster is asked, what came of it afterwards."""
        token = str(event.get("token"))
        if event["event"] == "submitting":
            elements = [[str(i) for i in ids] for ids in event.get("elements", [])]
            self.submissions[token] = Submission(
                token,
                str(event.get("stage")),
                elements,
                float(event.get("time") or 0),
                start=str(event.get("start") or ""),
            )
            for index, ids in enumerate(elements):
                for point_id in ids:
                    note = self.of(point_id)
                    note.chunk, note.index = token, index
        elif event["event"] == "submitted" and token in self.submissions:
            self.submissions[token].job = str(event.get("job"))
            self.submissions[token].refused = False
        elif event["event"] == "refused" and token in self.submissions:
            self.submissions[token].refused = True


def read_notes(events: Iterable[Event]) -> Notes:
    """Sum up events, oldest first."""
    notes = Notes()
    for event in events:
        notes.add(event)
    return notes
