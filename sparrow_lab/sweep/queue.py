"""Which points start next: a pure decision over states, needs and free room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.states import BLOCKING, State

WAITING: frozenset[State] = frozenset({"planned", "interrupted"})
"""States from which a point may start."""


def ready(points: Iterable[PlannedPoint], states: Mapping[str, State]) -> list[PlannedPoint]:
    """The points that wait and have all they need, in the given order."""
    return [
        p
        for p in points
        if states[p.id] in WAITING and all(states.get(n) == "done" for n in p.needs.values())
    ]


def blocked_by(point: PlannedPoint, states: Mapping[str, State]) -> tuple[str, str] | None:
    """(stage, id) of a need because of which a waiting point cannot start, now or later."""
    for stage, needed in point.needs.items():
        if states.get(needed) in BLOCKING:
            return stage, needed
    return None


def with_followers(
    point: PlannedPoint, points: Sequence[PlannedPoint], states: Mapping[str, State]
) -> list[PlannedPoint]:
    """The points of one job: a train point and the waiting evaluations that it alone feeds.

    They share a process, which saves a start; any other point is a job by itself.
    """
    if point.stage != "train":
        return [point]
    return [point] + [
        p
        for p in points
        if p.stage == "evaluate" and p.needs == {"train": point.id} and states[p.id] in WAITING
    ]


def first_points(points: Sequence[PlannedPoint], count: int) -> set[str]:
    """Ids of the first `count` train points with all they need and their evaluations.

    A plan without train points takes the first `count` of its last stage.
    """
    stages = [p.stage for p in points]
    stage = "train" if "train" in stages else (stages[-1] if stages else "")
    chosen = {p.id for p in [p for p in points if p.stage == stage][:count]}
    chosen |= {p.id for p in points if p.stage == "evaluate" and p.needs.get("train") in chosen}
    return with_needs(points, chosen)


def with_needs(points: Sequence[PlannedPoint], chosen: set[str]) -> set[str]:
    """`chosen` and everything that those points need, directly or through others."""
    by_id = {p.id: p for p in points}
    todo, found = list(chosen), set(chosen)
    while todo:
        for needed in by_id[todo.pop()].needs.values():
            if needed in by_id and needed not in found:
                found.add(needed)
                todo.append(needed)
    return found


def with_dependants(points: Sequence[PlannedPoint], chosen: set[str]) -> set[str]:
    """`chosen` and every point that needs one of them, directly or through others."""
    found = set(chosen)
    for point in points:  # needs come first in a plan
        if found.intersection(point.needs.values()):
            found.add(point.id)
    return found
