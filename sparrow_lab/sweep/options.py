"""How a sweep is run this time: outside every point's id."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Options:
    """Settings of one run of a sweep.

    `parallel` is the number of workers at once; None lets as many threads run as there
    are cores. `only` limits the run to these ids; None means the whole plan. `notes` is
    what the ledger keeps besides (tracking settings, overrides).
    """

    parallel: int | None = None
    retries: int = 1
    timeout_min: float = 720
    grace_s: float = 30
    only: frozenset[str] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What goes into the ledger's `opened` event, for `retry` to find."""
        return {
            "parallel": self.parallel,
            "retries": self.retries,
            "timeout_min": self.timeout_min,
            "grace_s": self.grace_s,
            "notes": self.notes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any], only: frozenset[str] | None = None) -> Options:
        """Inverse of `to_json`; what is missing takes its default."""
        names = ("parallel", "retries", "timeout_min", "grace_s", "notes")
        return cls(**{k: data[k] for k in names if k in data}, only=only)
