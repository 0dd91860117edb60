"""The state of every point, from its files, the ledger and the live processes; reads only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparrow_lab.errors import UserError
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import Note, Notes, read_notes
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.runs.process import is_alive, on_this_host
from sparrow_lab.sweep.processes import live_tokens

if TYPE_CHECKING:
    from sparrow_lab.sweep.slurm.squeue import Queue

State = Literal[
    "planned",
    "submitted",
    "pending",
    "running",
    "done",
    "failed",
    "lost",
    "cancelled",
    "held",
    "interrupted",
]
"""`submitted`: a cluster has it, but it is not its turn in its job, or the queue is not known;
`pending`: its job waits in the cluster's queue."""

STATES: tuple[State, ...] = (
    "done", "running", "pending", "submitted", "planned", "interrupted", "held", "cancelled",
    "lost", "failed",
)  # fmt: skip

ON_CLUSTER: frozenset[State] = frozenset({"submitted", "pending", "running"})
"""States in which a point is in somebody's hands."""

SILENT_S = 900.0
"""An attempt of another host is taken for dead when its files have not changed for so long."""

BLOCKING: frozenset[State] = frozenset({"failed", "lost", "cancelled", "held"})
"""States in which a point holds those that need it."""


@dataclass(frozen=True)
class PointState:
    """Where a point stands. `reason` is one line; `result` is there when it is done."""

    point: PlannedPoint
    state: State
    reason: str = ""
    attempt: AttemptFolder | None = None
    result: dict[str, Any] | None = None
    job: str = ""
    """The cluster's name of its job while that is in the queue."""
    twin_of: str = ""
    """The point whose run this one shares, as a job has found, while that is not done."""
    log: Path | None = None
    """What its job printed, where that ended before its worker had begun."""

    @property
    def same_as(self) -> str | None:
        """The id of the point that ran, when this one is another name of the same run."""
        return self.result.get("alias_of") if self.result else None


def read_states(
    sweep: SweepFolder,
    plan: Plan | None = None,
    notes: Notes | None = None,
    ask: Callable[[], Queue] | None = None,
) -> dict[str, PointState]:
    """The state of each point of the plan, by id and in plan order.

    Args:
        ask: reads what waits and runs on the cluster. Called once, and only if the ledger says
            that something which is not done was submitted to one.
    """
    plan = plan or sweep.read_plan()
    notes = notes or read_notes(Ledger(sweep.ledger_path).read())
    states = {p.id: own_state(sweep, p, notes.of(p.id)) for p in plan.points}
    if any(notes.submission_of(i) for i, s in states.items() if s.state != "done"):
        from sparrow_lab.sweep.slurm.states import with_queue

        states = with_queue(sweep, states, notes, ask)
    unseen = {
        state.point.id: notes.of(state.point.id).tokens[-1]
        for state in states.values()
        if state.state not in ("done", *ON_CLUSTER) and notes.of(state.point.id).tokens
    }
    if unseen:
        live = live_tokens(set(unseen.values()))
        for point_id, token in unseen.items():
            state = states[point_id]
            if token not in live and state.state != "planned":
                continue
            if _was_claimed(sweep, point_id, token):
                # perhaps only since its files were read: a worker that has just begun or ended
                states[point_id] = own_state(sweep, state.point, notes.of(point_id))
            elif token in live:
                states[point_id] = replace(state, state="running", reason="starting")
    from sparrow_lab.sweep.same_run import with_owners

    return held_by_needs(with_owners(sweep, states).values())


KINDS: dict[str, State] = {"interrupted": "interrupted", "lost": "lost", "held": "held"}
"""The state that a kind of failure means; every other kind is a failure."""


def own_state(sweep: SweepFolder, point: PlannedPoint, note: Note) -> PointState:
    """A point's state by itself, whatever it needs."""
    folder = sweep.point(point.id)
    result = folder.read_result()
    if result is not None:
        return PointState(point, "done", result=result)
    attempts = folder.attempts()
    latest = attempts[-1] if attempts else None
    failure = latest.read_failure() if latest else None
    if latest and failure is None and is_running(latest):
        return PointState(point, "running", attempt=latest)
    if note.cancelled:
        return PointState(point, "cancelled", "cancelled by hand", latest)
    if latest and latest.number > note.floor:
        if failure is None:
            reason = folder.result_problem() or "the worker vanished"
            return PointState(point, "lost", reason, latest)
        kind, message = failure.get("kind"), str(failure.get("message", ""))
        return PointState(point, KINDS.get(str(kind), "failed"), message, latest)
    if note.held:
        return PointState(point, "held", note.held, latest)
    return PointState(point, "planned", attempt=latest)


def left_behind(sweep: SweepFolder, plan: Plan, notes: Notes | None = None) -> list[PointState]:
    """Points that this plan or an earlier one dropped, neither done nor cancelled since; one whose
    `point.json` is damaged is passed over."""
    notes = notes or read_notes(Ledger(sweep.ledger_path).read())
    planned = {p.id for p in plan.points}
    left = []
    for point_id, note in notes.points.items():
        if point_id in planned or note.cancelled:
            continue
        folder = sweep.point(point_id)
        if not folder.path.is_dir():
            continue
        try:
            point = folder.read_point()
        except UserError:  # no job can begin it either
            continue
        state = own_state(sweep, point, note)
        if state.state != "done":
            left.append(state)
    return left


def still_at_work(
    sweep: SweepFolder, plan: Plan, notes: Notes, ask: Callable[[], Queue] | None = None
) -> list[PointState]:
    """Of what was dropped and not cancelled, the points that still wait in a queue or run."""
    states = {s.point.id: s for s in left_behind(sweep, plan, notes)}
    if any(notes.submission_of(i) for i in states):
        from sparrow_lab.sweep.slurm.states import with_queue

        states = with_queue(sweep, states, notes, ask)
    return [s for s in states.values() if s.state == "running" or s.job]


def held_by_needs(states: Iterable[PointState]) -> dict[str, PointState]:
    """Mark what cannot start because something it needs failed; needs come first."""
    seen: dict[str, PointState] = {}
    for state in states:
        if state.state in ("planned", "interrupted", "held"):
            for stage, needed in state.point.needs.items():
                blocker = seen.get(needed)
                if blocker and blocker.state in BLOCKING:
                    state = replace(state, state="held", reason=why_held(stage, blocker))
                    break
        seen[state.point.id] = state
    return seen


def why_held(stage: str, blocker: PointState) -> str:
    """One line on what holds a point back."""
    what = {"failed": "failed", "lost": "was lost", "cancelled": "was cancelled"}
    return f"its {stage} ({blocker.point.id}) {what.get(blocker.state, 'is held')}"


def is_running(attempt: AttemptFolder) -> bool:
    """Whether the attempt's process lives; for one of another host, whether its files move."""
    claim = attempt.read_claim()
    if claim and not on_this_host(claim):
        return time.time() - last_change(attempt) < SILENT_S
    return is_alive(claim)


def last_change(attempt: AttemptFolder) -> float:
    """When a file of the attempt was last written; 0 when there is none."""
    try:
        return max(entry.stat().st_mtime for entry in attempt.path.iterdir())
    except (OSError, ValueError):
        return 0.0


def _was_claimed(sweep: SweepFolder, point_id: str, token: str) -> bool:
    claims = (a.read_claim() for a in sweep.point(point_id).attempts())
    return any(claim and claim.get("token") == token for claim in claims)
