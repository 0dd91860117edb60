"""How points become arrays: a pure decision over needs, the array cap and the throttle.

Without a throttle an array waits for exactly the elements whose results its points need, so
one slow calibration holds nothing but what is built on it. With a throttle T the arrays form
one chain, each with Slurm's own limit of T, so that never more than T run: Slurm's throttle
is one of an array, not of a sweep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from sparrow_lab.runs.plan import PlannedPoint

MOST_GROUPS = 64
"""Beyond so many different sets of needs in a stage they share arrays and wait for all."""
MOST_NAMED = 32
"""A dependency on more elements than this is one on their whole arrays."""


@dataclass(frozen=True)
class Made:
    """An element of a part of this arrangement: number of the part, index in it."""

    part: int
    index: int


@dataclass(frozen=True)
class Element:
    """The points of one job, each after what it needs."""

    points: tuple[PlannedPoint, ...]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(p.id for p in self.points)

    @property
    def stage(self) -> str:
        return self.points[0].stage

    def needs(self) -> set[str]:
        """What the points need of others."""
        return {n for p in self.points for n in p.needs.values()} - set(self.ids)


@dataclass
class Part:
    """One array to be: its elements, and what must have ended before it begins."""

    stage: str
    elements: list[Element]
    after: list[Made] = field(default_factory=list)
    after_parts: list[int] = field(default_factory=list)
    """Parts that must have ended as a whole."""
    after_jobs: list[str] = field(default_factory=list)
    """Jobs that are in the queue already, as Slurm names them."""
    canary: str | None = None
    """The point that these elements look at before they begin."""
    is_canary: bool = False


def arrange(
    elements: Sequence[Element],
    cap: int,
    throttle: int | None,
    canaries: Collection[str],
    live: Mapping[str, str],
    every_live: Sequence[str] = (),
    first: Mapping[str, tuple[str, str]] | None = None,
) -> list[Part]:
    """Arrays for the elements, in the order in which they are to be submitted.

    Args:
        elements: in plan order; each comes after those that make what it needs.
        cap: most elements of an array.
        throttle: most elements that run at once, or None.
        canaries: stages whose first element goes alone, before the rest.
        live: job in the queue that makes a point, by point id.
        first: by stage, a point in the queue that is its canary already, and its job.
        every_live: all arrays of this sweep in the queue; a throttled chain starts after them.

    Every element is in exactly one part, and an index never reaches `cap`.
    """
    parts: list[Part] = []
    made: dict[str, Made] = {}
    by_stage: dict[str, list[Element]] = {}
    for element in elements:
        by_stage.setdefault(element.stage, []).append(element)
    for stage, those in by_stage.items():
        canary: Made | None = None
        watched, job = (first or {}).get(stage, (None, None))
        rest = those
        if stage in canaries and len(those) > 1:
            alone = _part(stage, those[:1], made, live)
            alone.is_canary = True
            _add(parts, alone, made)
            canary, watched, rest = Made(len(parts) - 1, 0), those[0].ids[0], those[1:]
        groups = [rest] if throttle else _groups(rest, made, live)
        for group in groups:
            for start in range(0, len(group), cap):
                part = _part(stage, group[start : start + cap], made, live)
                part.canary = watched
                if canary is not None and canary not in part.after:
                    part.after.append(canary)
                if job is not None and job not in part.after_jobs:
                    part.after_jobs.append(job)
                _add(parts, part, made)
    return _chained(parts, every_live) if throttle else [_coarse(p, parts) for p in parts]


def _part(
    stage: str, elements: list[Element], made: Mapping[str, Made], live: Mapping[str, str]
) -> Part:
    needs = sorted({n for e in elements for n in e.needs()})
    after = list(dict.fromkeys(made[n] for n in needs if n in made))
    jobs = list(dict.fromkeys(live[n] for n in needs if n in live and n not in made))
    return Part(stage, list(elements), after, after_jobs=jobs)


def _add(parts: list[Part], part: Part, made: dict[str, Made]) -> None:
    parts.append(part)
    for index, element in enumerate(part.elements):
        made.update(dict.fromkeys(element.ids, Made(len(parts) - 1, index)))


def _groups(
    elements: list[Element], made: Mapping[str, Made], live: Mapping[str, str]
) -> list[list[Element]]:
    """Elements that wait for the same things together."""
    groups: dict[frozenset[object], list[Element]] = {}
    for element in elements:
        waits: set[object] = {made[n] for n in element.needs() if n in made}
        waits |= {live[n] for n in element.needs() if n in live and n not in made}
        groups.setdefault(frozenset(waits), []).append(element)
    if len(groups) <= MOST_GROUPS:
        return list(groups.values())
    free = groups.get(frozenset(), [])
    bound = [e for waits, group in groups.items() if waits for e in group]
    return [group for group in (free, bound) if group]


def _coarse(part: Part, parts: Sequence[Part]) -> Part:
    """Name whole arrays where single elements would be many, or are all of an array."""
    by_part: dict[int, list[Made]] = {}
    for made in part.after:
        by_part.setdefault(made.part, []).append(made)
    many = len(part.after) > MOST_NAMED
    whole = [i for i, found in by_part.items() if many or len(found) == len(parts[i].elements)]
    part.after_parts = whole
    part.after = [made for made in part.after if made.part not in whole]
    if len(part.after_jobs) > MOST_NAMED:
        part.after_jobs = list(dict.fromkeys(job.partition("_")[0] for job in part.after_jobs))
    return part


def _chained(parts: list[Part], every_live: Sequence[str]) -> list[Part]:
    """One after the other; the first after all that is in the queue."""
    for i, part in enumerate(parts):
        part.after = []
        part.after_parts = [i - 1] if i else []
        part.after_jobs = [] if i else list(every_live)
    return parts
