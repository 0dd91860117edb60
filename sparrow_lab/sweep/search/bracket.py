"""Narrowing one bracket: which runs would tell most, and what is known. Pure decisions.

The bracket lies between the last level that collapsed and the first stable one beyond it. Each
new level lies in its middle; several schedules between its ends are told apart before anything
is trained, and a level that is the same run as an end is never tried. Nothing is taken for
granted: ends that do not behave as expected, levels without a verdict and stable levels beyond
a collapsed one all end up in the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sparrow_lab.sweep.search.levels import Level, Quorum, merged
from sparrow_lab.sweep.search.scale import Scale

MOST_SILENT = 3
"""After so many levels without a verdict between the ends the bracket is left as it is."""

KeyOf = Callable[[float], str | None]
"""What decides the training run at a value; equal keys are one run. None: not known (yet)."""


@dataclass(frozen=True)
class Ask:
    """A training run that would tell most."""

    value: float
    seed: int
    why: str


@dataclass
class Narrowed:
    """What is known, and what is wanted next.

    Attributes:
        asks: runs to start now.
        finished: why nothing more is wanted; empty while something is, or is under way.
        found: whether a bracket was found, so that `collapsed` and `stable` are its ends: the
            last value that collapses and the first stable one beyond.
        levels: all levels, from the side of collapse.
        against: stable levels on the collapsed side of the bracket.
    """

    asks: list[Ask] = field(default_factory=list)
    finished: str = ""
    found: bool = False
    collapsed: float = math.nan
    stable: float = math.nan
    levels: list[Level] = field(default_factory=list)
    against: list[Level] = field(default_factory=list)

    def to_json(self, quorum: Quorum) -> dict[str, Any]:
        """For `search.json`; ends that were not found are null."""
        return {
            "finished": self.finished,
            "found": self.found,
            "collapsed": self.collapsed if self.found else None,
            "stable": self.stable if self.found else None,
            "levels": [
                {
                    "low": level.low,
                    "high": level.high,
                    "verdict": level.verdict(quorum),
                    "runs": {str(s): o.kind if o else None for s, o in level.runs.items()},
                }
                for level in self.levels
            ],
            "against": [level.value for level in self.against],
        }


def narrow(
    scale: Scale, quorum: Quorum, levels: Mapping[float, Level], key_of: KeyOf, at_once: int = 1
) -> Narrowed:
    """Decide what to run next.

    Args:
        levels: what was tried so far, by value.
        key_of: see `KeyOf`.
        at_once: levels to try at the same time.
    """
    keys = {value: key_of(value) for value in levels}
    known = sorted(merged(levels, keys), key=lambda level: scale.at(level.value))
    result = Narrowed(levels=known)
    lower = [x for x in known if x.verdict(quorum) == "collapsed"]
    left = lower[-1] if lower else None
    start = -math.inf if left is None else scale.at(left.value)
    upper = [x for x in known if x.verdict(quorum) == "stable" and scale.at(x.value) > start]
    right = upper[0] if upper else None
    if left is not None:
        result.against = [
            x for x in known if x.verdict(quorum) == "stable" and scale.at(x.value) < start
        ]
    if left is None or right is None:
        _ends(scale, quorum, known, left, right, result)
        return result
    _inside(scale, quorum, left, right, key_of, at_once, result)
    return result


def _ends(
    scale: Scale,
    quorum: Quorum,
    known: list[Level],
    left: Level | None,
    right: Level | None,
    result: Narrowed,
) -> None:
    """Try the ends of the field of which nothing nearer is known."""
    expected = (("collapsed", left), ("stable", right))
    for end, (wanted, have) in zip(scale.ends, expected, strict=True):
        if have is not None:
            continue
        level = next((x for x in known if x.low <= end <= x.high), Level(end))
        verdict = level.verdict(quorum)
        if verdict == "open":
            why = f"the end that should {'collapse' if wanted == 'collapsed' else 'be stable'}"
            result.asks += [Ask(end, s, why) for s in level.wanted(quorum)]
        elif verdict == "undecided":
            result.finished = f"the end at {end:g} is undecided: {level.text()}"
        elif wanted == "collapsed":
            result.finished = f"no level collapses, not even {end:g}: {level.text()}"
        else:
            result.finished = f"no level is stable, not even {end:g}: {level.text()}"
    if result.finished:
        result.asks = []


def _inside(
    scale: Scale,
    quorum: Quorum,
    left: Level,
    right: Level,
    key_of: KeyOf,
    at_once: int,
    result: Narrowed,
) -> None:
    """Try levels between two ends that are known."""
    a, b, free, neighbours = _shrunk(scale, left, right, key_of)
    result.found, result.collapsed, result.stable = True, a, b
    if scale.reached(a, b):
        why = "no other run lies between them" if neighbours else "as narrow as was asked for"
        result.finished = why
        return
    tried = [x for x in result.levels if scale.at(a) < scale.at(x.value) < scale.at(b)]
    open_ = [x for x in tried if x.verdict(quorum) == "open"]
    begun = [x for x in open_ if x.begun or x.under_way]
    for level in begun:
        result.asks += [Ask(level.value, s, "no majority yet") for s in level.wanted(quorum)]
    silent = [x for x in tried if x.verdict(quorum) == "undecided"]
    free += [x.value for x in open_ if x not in begun]
    runs: dict[str, list[float]] = {}
    for value in sorted(set(free), key=scale.at):
        if not any(_same(scale, value, x.value, key_of) for x in silent + begun):
            runs.setdefault(key_of(value) or f"value {value!r}", []).append(value)
    if (not runs and not begun) or len(silent) >= MOST_SILENT:
        what = "is left" if silent else "lies between them"
        result.finished = f"no other run {what}"
        if silent:
            result.finished += f": {len(silent)} levels between have no verdict"
        return
    place = f"between {min(a, b):g} and {max(a, b):g}"
    for value in _chosen(scale, a, b, list(runs.values()), open_, at_once - len(begun)):
        have = next((x for x in open_ if _same(scale, value, x.value, key_of)), Level(value))
        result.asks += [Ask(have.value, seed, place) for seed in have.wanted(quorum)]


def _shrunk(
    scale: Scale, left: Level, right: Level, key_of: KeyOf
) -> tuple[float, float, list[float], bool]:
    """The ends, moved inwards over values that are the same run; other values between; and
    whether there were none, so that the ends are neighbours."""
    a = max((left.low, left.high), key=scale.at)
    b = min((right.low, right.high), key=scale.at)
    ends = (key_of(left.value), key_of(right.value))
    neighbours = False
    while not scale.reached(a, b):
        inner = scale.between(a, b)
        keys = [key_of(value) for value in inner]
        start, stop = 0, len(inner)
        while start < stop and keys[start] is not None and keys[start] == ends[0]:
            a, start = inner[start], start + 1
        while stop > start and keys[stop - 1] is not None and keys[stop - 1] == ends[1]:
            b, stop = inner[stop - 1], stop - 1
        neighbours = start == stop
        if start == 0 and stop == len(inner):
            between = zip(inner, keys, strict=True)
            return a, b, [v for v, key in between if key is None or key not in ends], not inner
    return a, b, [], neighbours


def _same(scale: Scale, a: float, b: float, key_of: KeyOf) -> bool:
    """Whether two values are one run, or too near to each other to tell them apart."""
    keys = key_of(a), key_of(b)
    if None not in keys:
        return keys[0] == keys[1]
    return a == b or scale.gap(a, b) < scale.width / 2


def _chosen(
    scale: Scale, a: float, b: float, runs: list[list[float]], open_: list[Level], count: int
) -> list[float]:
    """Values that split the bracket into equal parts, each another run.

    Few runs are split by their number, many by the value: whichever needs fewer of them. A
    level of which something is known already is taken when it lies near enough.

    Args:
        runs: the values between the ends, those of one run together, in order.
    """
    middles = [values[len(values) // 2] for values in runs]
    by_number = len(middles) < scale.gap(a, b) / scale.width
    reach = abs(scale.at(b) - scale.at(a)) / 8
    known = {x.value for x in open_}
    chosen: list[float] = []
    for i in range(1, count + 1):
        left = [v for v in middles if v not in chosen]
        if not left:
            break
        aim = scale.at(a) + (scale.at(b) - scale.at(a)) * i / (count + 1)
        if by_number:
            aim = scale.at(middles[min(len(middles) - 1, len(middles) * i // (count + 1))])

        def far(value: float, aim: float = aim) -> float:
            return abs(scale.at(value) - aim)

        near = [v for v in left if v in known and far(v) <= reach]
        chosen.append(min(near or left, key=far))
    return chosen
