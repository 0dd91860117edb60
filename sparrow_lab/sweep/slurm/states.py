"""The state of what a cluster was given: files first, then the queue, then the files again.

A job that has left the queue may have ended a moment after its files were read, so those are
read once more: a point is called lost only when neither knows of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.notes import Note, Notes, Submission
from sparrow_lab.sweep.slurm import breaker, start, twins
from sparrow_lab.sweep.slurm.squeue import Queue, read_queue
from sparrow_lab.sweep.states import BLOCKING, ON_CLUSTER, PointState, State, own_state

SETTLING_S = 15.0
"""A job that was submitted so lately may not be in the queue yet."""

NO_WORD = "its job left the queue before it had begun"


def with_queue(
    sweep: SweepFolder,
    states: Mapping[str, PointState],
    notes: Notes,
    ask: Callable[[], Queue] | None = None,
) -> dict[str, PointState]:
    """The states with what the queue says of those that a cluster holds; needs come first.

    `ask` reads the queue; `read_queue` by default.
    """
    queue = (ask or read_queue)()
    held: dict[tuple[str, str], str] = {}
    out: dict[str, PointState] = {}
    for point_id, state in states.items():
        submission = notes.submission_of(point_id)
        if state.state != "done" and submission is not None:
            broken = (state.point.stage, submission.start)
            if broken not in held:
                held[broken] = breaker.holds(sweep, broken[0]) or start.why_held(sweep, broken[1])
            ahead = _ahead(sweep, submission, notes.of(point_id).index, point_id, out)
            state = _state(sweep, state, notes.of(point_id), submission, queue, ahead, held[broken])
        out[point_id] = state
    return _twins(sweep, out, notes, queue)


def _state(
    sweep: SweepFolder,
    before: PointState,
    note: Note,
    submission: Submission,
    queue: Queue,
    ahead: str,
    broken: str,
) -> PointState:
    """`ahead`: what its job has to finish before it; `broken`: why its stage, or all that begins
    with its set-up, is held."""
    point = before.point
    queued = queue.elements.get((submission.token, note.index))
    if queued is None:
        now = own_state(sweep, point, note)
        if queue.error:
            return now if now.state not in ("planned",) else replace(now, state="submitted")
        return _gone(sweep, now, note, submission, ahead, broken)
    if note.cancelled and queued.phase == "pending":
        return replace(before, state="cancelled", reason="cancelled by hand")
    if ahead:
        return PointState(point, "submitted", f"after {ahead} in the same job", job=queued.job)
    if queued.phase == "running":
        attempt = before.attempt if _is_of(before.attempt, submission) else None
        reason = "" if attempt is not None else "starting"
        return PointState(point, "running", reason, attempt, job=queued.job)
    was = f"{before.reason}; " if before.state == "interrupted" else ""
    return PointState(point, "pending", was + queued.why, before.attempt, job=queued.job)


def _gone(
    sweep: SweepFolder,
    now: PointState,
    note: Note,
    submission: Submission,
    ahead: str,
    broken: str,
) -> PointState:
    """A point whose job is not in the queue: what its files say, or that nothing is known."""
    if now.state in ("done", "cancelled"):
        return now
    died = start.read_death(sweep, submission.start, submission.token, note.index)
    if died is not None and not ahead:
        return replace(now, state="failed", reason=died.reason, log=died.log)
    if _is_of(now.attempt, submission):
        # a job on another node is dead when it has left the queue, however fresh its files
        assert now.attempt is not None
        if now.state in ("running", "lost") and now.attempt.read_failure() is None:
            return replace(now, state="lost", reason="its job ended without a word")
        return now
    if now.state == "running":
        return now  # a worker of another kind has it
    if twins.read_twin(sweep, now.point.id) is not None:
        return replace(now, state="submitted")
    if ahead:
        return replace(now, state="planned", reason="")
    if broken:
        return replace(now, state="held", reason=broken)
    if time.time() - submission.time < SETTLING_S:
        return replace(now, state="submitted", reason="")
    if submission.job is None:
        return replace(now, state="planned", reason="")  # it never came to be submitted
    log = sweep.submission(submission.token) / f"{note.index}.log"
    said = start.last_words(log)
    reason = NO_WORD + (f": {said}" if said else "")
    return replace(now, state="lost", reason=reason, log=log if said else None)


def _ahead(
    sweep: SweepFolder,
    submission: Submission,
    index: int,
    point_id: str,
    seen: Mapping[str, PointState],
) -> str:
    """The point that the job has to finish before this one; empty when it is this one's turn."""
    ids = submission.elements[index] if index < len(submission.elements) else [point_id]
    for other in ids[: ids.index(point_id)] if point_id in ids else []:
        known = seen.get(other)
        if known.state != "done" if known else sweep.point(other).read_result() is None:
            return other
    return ""


def _is_of(attempt: AttemptFolder | None, submission: Submission) -> bool:
    claim = (attempt.read_claim() or {}) if attempt is not None else {}
    return claim.get("token") == submission.token


def _twins(
    sweep: SweepFolder, states: dict[str, PointState], notes: Notes, queue: Queue
) -> dict[str, PointState]:
    """Points that left their run to another, and the evaluations of such points."""
    for point_id, state in states.items():  # needs come first
        if state.job or state.state not in ("planned", "submitted"):
            continue
        trained = states.get(state.point.needs.get("train", ""))
        if trained is not None and trained.twin_of:
            said = f"its train is the same run as {trained.twin_of}"
            states[point_id] = replace(state, reason=said, twin_of=trained.twin_of)
        elif state.state == "submitted" and (owner := twins.read_twin(sweep, point_id)):
            note = notes.of(owner)
            # its job finishes the twins after its own result is written
            at_it = (note.chunk or "", note.index) in queue.elements or bool(queue.error)
            states[point_id] = _twin(state, owner, states.get(owner), at_it)
    return states


def _twin(state: PointState, owner: str, other: PointState | None, at_it: bool) -> PointState:
    """A point that left its run to `owner`: it waits for that, or is held with it.

    An owner that was cancelled, or has left the plan, holds nothing: the next submission lets
    the point run itself.
    """
    now: State = "submitted" if at_it or (other and other.state in ON_CLUSTER) else "planned"
    reason = f"the same run as {owner}"
    if other is not None and other.state in BLOCKING - {"cancelled"}:
        now, reason = "held", f"{reason}, which is {other.state}"
    elif (other is not None and other.state == "cancelled") or (other is None and not at_it):
        gone = "was cancelled" if other is not None else "has left the file"
        now, reason = "planned", f"{reason}, which {gone}; the same command runs this one"
    return replace(state, state=now, reason=reason, twin_of=owner)
