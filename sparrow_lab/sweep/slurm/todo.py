"""Which points are to be submitted, as elements of arrays; reads files and the queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import Notes, read_notes
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep import queue as order
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm import twins
from sparrow_lab.sweep.slurm.arrange import Element
from sparrow_lab.sweep.slurm.squeue import Queue
from sparrow_lab.sweep.states import ON_CLUSTER, PointState, State, held_by_needs, read_states
from sparrow_lab.sweep.tally import may_try_again

LEFT_ALONE: dict[State, str] = {
    "done": "done",
    "running": "running",
    "pending": "in the queue",
    "submitted": "in the queue behind others of theirs",
    "failed": "failed",
    "cancelled": "cancelled",
    "held": "held",
}
"""What is not submitted again, in words."""


@dataclass
class Todo:
    """What is to be submitted, and what is not, with the reason."""

    states: dict[str, PointState]
    elements: list[Element] = field(default_factory=list)
    canaries: set[str] = field(default_factory=set)
    live: dict[str, str] = field(default_factory=dict)
    """Job of each point that is in the queue."""
    live_arrays: list[str] = field(default_factory=list)
    first: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By stage of which nothing is done yet: a point that is in the queue, and its job. The
    rest waits for it as for a canary."""

    again: Counter[str] = field(default_factory=Counter)
    """Why points that are chosen had ended before, and how many for each reason."""

    @property
    def points(self) -> list[PlannedPoint]:
        return [p for e in self.elements for p in e.points]

    def lines(self) -> list[str]:
        """What is tried again and why, and one line on what is left alone, if anything is."""
        counts = Counter(s.state for s in self.states.values())
        parts = [f"{counts[state]} {words}" for state, words in LEFT_ALONE.items() if counts[state]]
        again = [f"trying again: {count} {what}" for what, count in self.again.most_common(8)]
        return [*again, *([f"left alone: {', '.join(parts)}"] if parts else [])]


def find_todo(sweep: SweepFolder, options: Options, queue: Queue, canary: bool = True) -> Todo:
    """Read where everything stands and choose what to submit.

    Points that are done, in the queue, running anywhere, cancelled, or failed without retries
    left are not chosen, nor what needs them. Twins whose owner is done are finished here.
    """
    plan = sweep.read_plan()
    notes = read_notes(Ledger(sweep.ledger_path).read())
    twins.finish_twins(sweep)
    states = read_states(sweep, plan, notes, lambda: queue)
    fresh = {i: _again(sweep, s, notes, options) for i, s in states.items()}
    todo = Todo(held_by_needs(fresh.values()))
    selected = {
        i
        for i, s in todo.states.items()
        if s.state in order.WAITING and (options.only is None or i in options.only)
    }
    selected = {i for i in selected if not _left_to_twin(sweep, i, todo.states, selected)}
    chosen = _reachable([p for p in plan.points if p.id in selected], todo.states)
    todo.elements = as_elements([p for p in plan.points if p.id in chosen])
    todo.live = {i: s.job for i, s in todo.states.items() if s.job}
    ours = set(notes.submissions)
    arrays = (q.array for q in queue.elements.values() if q.token in ours)
    todo.live_arrays = list(dict.fromkeys(arrays))
    if canary:
        todo.canaries = need_canary(todo)
        todo.first = _first_live(todo)
    bad = [states[i] for i in chosen if states[i].state in ("failed", "lost")]
    todo.again = Counter(f"{s.state}: {s.reason}" for s in bad)
    for point_id in chosen:
        todo.states[point_id] = PointState(todo.states[point_id].point, "planned")
    return todo


def _again(sweep: SweepFolder, state: PointState, notes: Notes, options: Options) -> PointState:
    """The state with which a point goes into this run: what may be tried again is planned."""
    planned = PointState(state.point, "planned")
    if state.state in ("held", "lost"):
        return planned
    if state.state == "failed":
        number = state.attempt.number if state.attempt else 0
        floor = notes.of(state.point.id).floor
        again = may_try_again(sweep, state.point.id, floor, number, options.retries)
        return planned if again else state
    return state


def _reachable(points: list[PlannedPoint], states: dict[str, PointState]) -> set[str]:
    """Of the points, in plan order, those whose needs are done, chosen, or in the queue."""
    chosen: set[str] = set()
    for point in points:
        if all(
            n in chosen or (n in states and (states[n].state == "done" or states[n].job))
            for n in point.needs.values()
        ):
            chosen.add(point.id)
    return chosen


def _left_to_twin(
    sweep: SweepFolder, point_id: str, states: dict[str, PointState], selected: set[str]
) -> bool:
    """Whether the point was found to be the same run as one that will run, and finish both."""
    owner = twins.read_twin(sweep, point_id)
    if owner is None or owner == point_id:
        return False
    other = states.get(owner)
    if owner in selected or (other is not None and other.state in ON_CLUSTER):
        return True
    twins.forget_twin(sweep, point_id)
    return False


def as_elements(points: list[PlannedPoint]) -> list[Element]:
    """Jobs: a train point goes with the evaluations that it alone feeds."""
    followers: dict[str, list[PlannedPoint]] = {}
    for point in points:
        if point.stage == "evaluate" and list(point.needs) == ["train"]:
            followers.setdefault(point.needs["train"], []).append(point)
    elements: list[Element] = []
    taken: set[str] = set()
    for point in points:
        if point.id not in taken:
            behind = followers.get(point.id, []) if point.stage == "train" else []
            taken.update(p.id for p in behind)
            elements.append(Element((point, *behind)))
    return elements


def need_canary(todo: Todo) -> set[str]:
    """Stages of which nothing is done yet and nothing is on its way."""
    stages = {e.stage for e in todo.elements}
    known = {
        s.point.stage for s in todo.states.values() if s.state == "done" or s.state in ON_CLUSTER
    }
    return stages - known


def _first_live(todo: Todo) -> dict[str, tuple[str, str]]:
    done = {s.point.stage for s in todo.states.values() if s.state == "done"}
    first: dict[str, tuple[str, str]] = {}
    for state in todo.states.values():
        if state.job and state.state in ("pending", "running") and state.point.stage not in done:
            first.setdefault(state.point.stage, (state.point.id, state.job))
    return first
