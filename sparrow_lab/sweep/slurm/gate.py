"""What an element asks of the files, and rarely of the queue, before a point begins.

The ledger says whose point it is, the needs' own files whether they are there, the canary and
the breaker whether the stage may go on, the claims whether someone else is at it already.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import Notes, read_notes
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.runs.process import is_alive, on_this_host
from sparrow_lab.stages import identical
from sparrow_lab.sweep.slurm import breaker, start, twins
from sparrow_lab.sweep.slurm.allocation import Allocation
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.states import SILENT_S, last_change


@dataclass(frozen=True)
class Answer:
    """`go`: begin. `done`: nothing to do. `leave`: someone else has the point. `hold`: it cannot
    begin, for `reason`. `wait`: what it needs still runs in job `job`."""

    kind: Literal["go", "done", "leave", "hold", "wait"]
    reason: str = ""
    job: str = ""


class Gate:
    """Answers for the points of one element; reads the ledger and the queue when asked."""

    def __init__(self, chunk: Chunk, sweep: SweepFolder, here: Allocation) -> None:
        self.chunk = chunk
        self.sweep = sweep
        self.here = here

    def ask(self, point: PlannedPoint) -> Answer:
        """Whether the point may begin here and now."""
        folder = self.sweep.point(point.id)
        if folder.read_result() is not None:
            return Answer("done")
        notes = self.notes()
        note = notes.of(point.id)
        if note.cancelled:
            return Answer("leave", "it was cancelled")
        if note.chunk != self.chunk.token:
            return Answer("leave", "a later submission has this point")
        answer = self._claim(point.id)
        if answer.kind != "go":
            return answer
        for stage, needed in point.needs.items():
            answer = self._needed(f"its {stage}", needed, notes)
            if answer.kind != "go":
                return answer
        answer = self._stage(point, notes)
        return self._identity(point, notes) if answer.kind == "go" else answer

    def notes(self) -> Notes:
        """The ledger as it is now."""
        return read_notes(Ledger(self.sweep.ledger_path).read())

    def _needed(self, what: str, point_id: str, notes: Notes) -> Answer:
        """Go when the other point is done; else hold for its failure, or wait for its job."""
        folder = self.sweep.point(point_id)
        if folder.read_result() is not None:
            return Answer("go")
        note = notes.of(point_id)
        if note.cancelled:
            return Answer("hold", f"{what} ({point_id}) was cancelled")
        queue = read_queue()
        queued = queue.elements.get((note.chunk or "", note.index))
        if queued is not None and queued.job != self.here.name:
            return Answer("wait", f"{what} ({point_id}) has not ended", queued.job)
        # it may have ended between the two looks
        if folder.read_result() is not None:
            return Answer("go")
        attempts = folder.attempts()
        failure = attempts[-1].read_failure() if attempts else None
        owner = twins.read_twin(self.sweep, point_id)
        if owner is not None and owner != point_id:
            return self._needed(f"{what}, the same run as", owner, notes)
        if failure and attempts[-1].number > note.floor:
            said = "is held" if failure.get("kind") == "held" else "failed"
            return Answer("hold", f"{what} ({point_id}) {said}: {failure.get('message')}")
        submission = notes.submission_of(point_id)
        if submission is not None:
            died = start.read_death(self.sweep, submission.start, submission.token, note.index)
            if died is not None:
                return Answer("hold", f"{what} ({point_id}) failed: {died.reason}")
        if attempts and failure is None and queue.error and _moves(attempts[-1]):
            return Answer("hold", f"{what} ({point_id}) still runs, and the queue is not known")
        return Answer("hold", f"{what} ({point_id}) is not done")

    def _stage(self, point: PlannedPoint, notes: Notes) -> Answer:
        """Whether the stage may go on: its first point, and how the others fared."""
        if breaker.succeeded(self.sweep, point.stage):
            return Answer("go")
        held = breaker.holds(self.sweep, point.stage)
        if held:
            return Answer("hold", held)
        first = self.chunk.canary
        if first is None or point.id == first or notes.of(first).cancelled:
            return Answer("go")
        if twins.read_twin(self.sweep, first) is not None:
            return Answer("go")
        return self._needed("the first point of its stage", first, notes)

    def _identity(self, point: PlannedPoint, notes: Notes) -> Answer:
        """Go, unless the point comes out as the same run as another that has it."""
        owner = self._owner(point)
        if owner == point.id:
            twins.forget_twin(self.sweep, point.id)
            return Answer("go")
        if self.sweep.point(owner).read_result() is None:
            note = notes.of(owner)
            queue = read_queue()
            queued = queue.elements.get((note.chunk or "", note.index))
            attempts = self.sweep.point(owner).attempts()
            failure = attempts[-1].read_failure() if attempts else None
            if queued is None and not queue.error and not self._result(owner):
                if failure and failure.get("kind") in ("error", "timeout") and not note.cancelled:
                    return Answer("hold", f"the same run as {owner}, which failed")
                identical.take_over(self.sweep, point)
                twins.forget_twin(self.sweep, point.id)
                return Answer("go")
        if twins.note_twin(self.sweep, point, owner):
            return Answer("done")
        return Answer("leave", f"the same run as {owner}, which finishes both")

    def _owner(self, point: PlannedPoint) -> str:
        """The point that has the run of `point`.

        The evaluation of a twin leaves the run to that of the train point that really ran, which
        may not have come to claim it yet.
        """
        if point.stage == "evaluate":
            ran = (self._result(point.needs["train"]) or {}).get("alias_of")
            key = identical.effective_key(self.sweep, point) if ran else None
            for other in self.sweep.read_plan().points if key else ():
                alike = other.stage == "evaluate" and other.needs.get("train") == ran
                if alike and identical.effective_key(self.sweep, other) == key:
                    return identical.owner_of(self.sweep, other)
        return identical.owner_of(self.sweep, point)

    def _result(self, point_id: str) -> dict[str, Any] | None:
        return self.sweep.point(point_id).read_result()

    def _claim(self, point_id: str) -> Answer:
        """Go unless the point's last attempt lives elsewhere.

        A job of an earlier submission is waited for: this one has the point, but not yet.
        """
        attempts = self.sweep.point(point_id).attempts()
        if not attempts or attempts[-1].read_failure() is not None:
            return Answer("go")
        claim = attempts[-1].read_claim() or {}
        job = claim.get("slurm")
        if not isinstance(job, Mapping):
            lives = is_alive(claim) if on_this_host(claim) else _moves(attempts[-1])
            return Answer("leave", "another worker is at this point") if lives else Answer("go")
        name = f"{job.get('array')}_{job.get('index')}"
        if name == self.here.name:
            return Answer("go")  # an earlier start of this very job, or a worker of it that died
        queue = read_queue()
        if queue.error:
            lives = _moves(attempts[-1])
            return Answer("leave", "another job is at this point") if lives else Answer("go")
        if any(q.job == name and q.phase == "running" for q in queue.elements.values()):
            return Answer("wait", "an earlier job is at this point", name)
        return Answer("go")


def _moves(attempt: AttemptFolder) -> bool:
    """Whether the attempt's files changed lately."""
    return time.time() - last_change(attempt) < SILENT_S
