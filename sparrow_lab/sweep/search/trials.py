"""The trials of a search, as the ledger has them: proposed, then told how they ended.

    {"event": "proposed", "trial": 3, "values": {"train.lr": 1e-4}, "points": [...], "why": ""}
    {"event": "told", "trial": 3, "kind": "done", "value": 0.93, "reason": ""}

A proposal is written before a point of it can be submitted. A trial may be told again: one that
failed and is tried again is told to be open, and then counts by what was told last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparrow_lab.config.space import name_of
from sparrow_lab.runs.ledger import Event, Ledger
from sparrow_lab.runs.verdict import DECIDED, Kind

OPEN = "open"
"""Told of a trial that had ended badly and is under way again."""

OutcomeKind = Literal["done", "failed", "refused"] | Kind
"""done: has a value (optuna). The verdicts of `runs.verdict` (bracket). failed: ended without
either. refused: the configuration cannot run, and was never planned."""


@dataclass(frozen=True)
class Outcome:
    """How a trial ended. `value` is what is optimised, or a run's last evaluation."""

    kind: OutcomeKind
    value: float | None = None
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the method can learn from it."""
        return self.kind == "done" or self.kind in DECIDED


@dataclass(frozen=True)
class Proposal:
    """What a method wants to know: values by dotted path, and in a few words why."""

    values: dict[str, Any]
    why: str = ""


@dataclass(frozen=True)
class Trial:
    """A proposal with its number, the points by which it is judged, and its outcome."""

    number: int
    values: dict[str, Any]
    points: tuple[str, ...] = ()
    why: str = ""
    outcome: Outcome | None = None

    @property
    def open(self) -> bool:
        """Whether it has not been told yet."""
        return self.outcome is None

    @property
    def refused(self) -> bool:
        """Whether its configuration cannot run: no point of it was ever planned."""
        return self.outcome is not None and self.outcome.kind == "refused"


@dataclass(frozen=True)
class Step:
    """What a method answers: more proposals, or why there will be none.

    Both empty means that it waits for trials that are under way.
    """

    proposals: list[Proposal] = field(default_factory=list)
    finished: str = ""


def read_trials(events: Iterable[Event]) -> list[Trial]:
    """The trials in the order of their numbers; events that cannot be understood are left out."""
    trials: dict[int, Trial] = {}
    for event in events:
        number = event.get("trial")
        if not isinstance(number, int):
            continue
        if event["event"] == "proposed" and isinstance(event.get("values"), dict):
            points = tuple(str(i) for i in event.get("points") or ())
            why = str(event.get("why", ""))
            trials.setdefault(number, Trial(number, event["values"], points, why))
        elif event["event"] == "told" and number in trials:
            trials[number] = replace(trials[number], outcome=_outcome(event))
    return [trials[number] for number in sorted(trials)]


def _outcome(event: Event) -> Outcome | None:
    if event.get("kind") == OPEN:
        return None
    value = event.get("value")
    known = float(value) if isinstance(value, (int, float)) else None
    return Outcome(event.get("kind", "failed"), known, str(event.get("reason", "")))


def write_proposed(ledger: Ledger, trials: Sequence[Trial]) -> None:
    """Write proposals, all in one go and synced to the disk."""
    ledger.append_all(
        [
            {
                "event": "proposed",
                "trial": t.number,
                "values": t.values,
                "points": list(t.points),
                "why": t.why,
            }
            for t in trials
        ]
    )


def write_told(ledger: Ledger, outcomes: Mapping[int, Outcome | None]) -> None:
    """Write how trials ended, by number; None for one that is under way again."""
    events: list[dict[str, Any]] = []
    for number, outcome in outcomes.items():
        if outcome is None:
            events.append({"event": "told", "trial": number, "kind": OPEN})
            continue
        told = {"kind": outcome.kind, "value": outcome.value, "reason": outcome.reason}
        events.append({"event": "told", "trial": number, **told})
    ledger.append_all(events)


def spelled_values(values: Mapping[str, Any]) -> str:
    """`lr=0.0001, page_size=4`."""
    parts = []
    for path, value in values.items():
        shown = value if isinstance(value, str) else name_of(value)
        parts.append(f"{path.rsplit('.', 1)[-1]}={shown}")
    return ", ".join(parts)
