"""The levels of a bracket: values of the field that was narrowed, and how their runs ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparrow_lab.runs.verdict import DECIDED
from sparrow_lab.sweep.search.trials import Outcome

Verdict = Literal["collapsed", "stable", "undecided", "open"]


@dataclass(frozen=True)
class Quorum:
    """When a level counts as collapsed: `share` of its seeds, and no seed run that cannot matter.

    Attributes:
        seeds: all that a level may use, in the order of use.
        collapsed, stable: so many runs of one kind decide the level, whatever the rest do.
    """

    seeds: tuple[int, ...]
    collapsed: int
    stable: int

    @classmethod
    def of(cls, seeds: Sequence[int], share: float) -> Quorum:
        """The rule for so many seeds: with 3 and one half, two runs of a kind decide."""
        least = max(1, math.ceil(share * len(seeds) - 1e-9))
        return cls(tuple(seeds), least, len(seeds) - least + 1)


@dataclass
class Level:
    """One value of the field with its runs by seed (None: under way).

    Values that come out as the same run (one schedule) are one level: `low` to `high`.
    """

    value: float
    runs: dict[int, Outcome | None] = field(default_factory=dict)
    begun: bool = False
    """The search itself asked for a run here; False when all were found finished."""
    low: float = math.nan
    high: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.low):
            self.low = self.high = self.value

    def join(self, other: Level) -> None:
        """Take in a level of the same run."""
        for seed, outcome in other.runs.items():
            mine = self.runs.get(seed)
            if mine is None or (outcome is not None and outcome.good and not mine.good):
                self.runs[seed] = outcome
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.begun |= other.begun

    def count(self, *kinds: str) -> int:
        """Runs that ended so."""
        return sum(o is not None and o.kind in kinds for o in self.runs.values())

    @property
    def under_way(self) -> int:
        return sum(o is None for o in self.runs.values())

    @property
    def decided_runs(self) -> int:
        """Runs with a verdict."""
        return self.count(*DECIDED)

    def verdict(self, quorum: Quorum) -> Verdict:
        """What the runs say so far; open when further seeds may still decide."""
        collapsed, stable = self.count("collapsed"), self.count("stable", "stagnated")
        if collapsed >= quorum.collapsed:
            return "collapsed"
        if stable >= quorum.stable:
            return "stable"
        may_come = self.under_way + len(self.unused(quorum))
        if collapsed + may_come < quorum.collapsed and stable + may_come < quorum.stable:
            return "undecided"
        return "open"

    def unused(self, quorum: Quorum) -> list[int]:
        """Seeds that were not tried here."""
        return [seed for seed in quorum.seeds if seed not in self.runs]

    def wanted(self, quorum: Quorum) -> list[int]:
        """The fewest further seeds that can decide the level; empty when enough are under way."""
        if self.verdict(quorum) != "open":
            return []
        short = min(
            quorum.collapsed - self.count("collapsed"),
            quorum.stable - self.count("stable", "stagnated"),
        )
        return self.unused(quorum)[: max(0, short - self.under_way)]

    def text(self) -> str:
        """`2 of 2 collapsed`, with those that never rose, and the runs that say nothing."""
        silent = self.count("censored", "unknown", "failed", "refused")
        idle = self.count("stagnated")
        said = f"{self.count('collapsed')} of {self.decided_runs} collapsed"
        said += f", {idle} stagnated" if idle else ""
        return said + (f", {silent} without a verdict" if silent else "")


def merged(levels: Mapping[float, Level], keys: Mapping[float, str | None]) -> list[Level]:
    """Levels by rising value, those of one key joined; a key of None is like no other."""
    made: list[Level] = []
    by_key: dict[str, Level] = {}
    for value in sorted(levels):
        key = keys.get(value)
        if key is not None and key in by_key:
            by_key[key].join(levels[value])
            continue
        level = Level(value, dict(levels[value].runs), levels[value].begun)
        made.append(level)
        if key is not None:
            by_key[key] = level
    return made
