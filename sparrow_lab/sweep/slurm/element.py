"""One element of an array: runs its points through a worker process, and leaves in time.

Slurm starts it, perhaps several times; nothing else has to be alive for it. It writes into the
attempts of its points and the breaker, never into the ledger.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.runs.process import STOP_SIGNALS
from sparrow_lab.stages import identical
from sparrow_lab.sweep.slurm import breaker, start, twins
from sparrow_lab.sweep.slurm.allocation import Allocation
from sparrow_lab.sweep.slurm.child import Child, adopt_orphans
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.gate import Answer, Gate
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.squeue import cancel, read_queue
from sparrow_lab.sweep.slurm.tries import Tries
from sparrow_lab.sweep.tally import may_try_again, stuck

POLL_S = 0.1
MARGIN_S = 5.0
"""Left of the grace for asking Slurm to go on, after the worker has saved."""


@dataclass
class Element:
    """One start of one element. `run` returns the exit code of the job."""

    chunk: Chunk
    here: Allocation
    signal: int = 0
    """The first stop signal that came; 0 while there was none."""
    asked_at: float = 0.0
    sweep: SweepFolder = field(init=False)
    gate: Gate = field(init=False)
    tries: Tries = field(init=False)

    def __post_init__(self) -> None:
        self.sweep = SweepFolder(Path(self.chunk.sweep))
        self.gate = Gate(self.chunk, self.sweep, self.here)
        self.tries = Tries(self.sweep, self.here, self.chunk.token)

    def run(self) -> int:
        """Run what is to be run here; 0 unless a point failed for good."""
        adopt_orphans()
        for number in STOP_SIGNALS:
            signal.signal(number, self._asked)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        ids = self.chunk.elements[self.here.index]
        points = [self.sweep.point(i).read_point() for i in ids]
        start.begun(self.chunk, self.here.index)
        lost_before = {p.id: self.tries.number(p.id) for p in points}
        while todo := [p for p in points if self.sweep.point(p.id).read_result() is None]:
            point = todo[0]
            if self.signal:
                return self._leave(point)
            answer = self.gate.ask(point)
            if answer.kind == "done":
                continue
            if answer.kind != "go":
                return self._not_begun(point, answer)
            code = self._work(todo)
            self._tell_done(todo)
            at = next((p for p in todo if self.tries.result(p.id) is None), None)
            if at is not None and self.signal:
                return self._leave(at)
            if at is not None and not self._goes_on(at, code, lost_before[at.id]):
                return 1 if self.tries.is_mine(at.id) else 0
        self._tell_done(points)  # a former start may have been killed before it could
        return 0

    # ------------------------------------------------------------------ the worker

    def _work(self, points: Sequence[PlannedPoint]) -> int:
        """Have a worker process run the points; its return code once it and all its own are gone.

        After a stop signal it is asked to leave, and killed when the grace is nearly over.
        """
        task = {
            "sweep": self.chunk.sweep,
            "points": [p.id for p in points],
            "stages": self.chunk.stages,
            "token": self.chunk.token,
            "on_cluster": self.here.to_json(),
        }
        threads = max(int(p.config.get("threads", 1)) for p in points)
        child = Child(task, threads, self._caches())
        try:
            while child.returncode is None:
                if self.signal:
                    child.press()
                    if time.monotonic() - self.asked_at > self._time_to_save():
                        break
                time.sleep(POLL_S)
        finally:
            child.end()
        code = child.returncode
        return code if code is not None else -signal.SIGKILL

    def _time_to_save(self) -> float:
        """Seconds from the signal to when a worker that has not left is killed."""
        grace = float(self.chunk.grace)
        if self.signal == signal.SIGTERM:  # Slurm kills what it has cancelled after KillWait
            grace = min(grace, self.chunk.kill_wait)
        return max(grace - MARGIN_S, grace / 2)

    def _caches(self) -> dict[str, str]:
        """Compiled kernels go to the node's own disk, apart for each version of the code."""
        if self.chunk.cache is None:
            return {}
        user = os.environ.get("USER") or str(os.getuid())
        base = Path(os.path.expandvars(self.chunk.cache)) / f"sparrow-lab-{user}"
        base = base / Path(self.chunk.code).name
        return {
            "TRITON_CACHE_DIR": str(base / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(base / "inductor"),
        }

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if not self.signal:
            self.signal, self.asked_at = number, time.monotonic()

    # ------------------------------------------------------------------ after the worker

    def _goes_on(self, point: PlannedPoint, code: int, lost_before: int) -> bool:
        """Whether a point that did not end well is tried again; what is final is told to others."""
        if not self.tries.is_mine(point.id):
            if code == 0:
                return False  # cancelled meanwhile, or another job has claimed it
            log = self.chunk.folder / f"{self.here.index}.log"
            said = start.last_words(log) or "the worker died before it had begun"
            self.tries.claim(point.id).write_failure("lost" if code < 0 else "error", said)
        attempt = self.tries.latest(point.id)
        assert attempt is not None
        failure = attempt.read_failure()
        if failure is None:
            said = f"the worker was killed by signal {-code}" if code < 0 else "the worker vanished"
            attempt.write_failure("lost", f"{said} (out of memory?)" if code == -9 else said)
            failure = attempt.read_failure() or {}
        if failure.get("kind") in ("interrupted", "held"):
            # found only now that another point has its run: the gate knows what to do
            return not self.signal and identical.owner_of(self.sweep, point) != point.id
        floor = self.gate.notes().of(point.id).floor
        if may_try_again(self.sweep, point.id, floor, lost_before, self.chunk.retries):
            print(f"trying {point.id} again: {failure.get('message')}", flush=True)
            return True
        breaker.note_failure(self.sweep, point.stage, point.id, str(failure.get("message")))
        if breaker.holds(self.sweep, point.stage):
            self._cancel_waiting(point.stage)
        return False

    def _tell_done(self, points: Sequence[PlannedPoint]) -> None:
        """Say that a stage works, and finish the points that are the same runs as these."""
        done = [p for p in points if self.tries.result(p.id) is not None]
        for point in done:
            breaker.note_success(self.sweep, point.stage, point.id)
        twins.finish_twins(self.sweep, [p.id for p in done])

    def _cancel_waiting(self, stage: str) -> None:
        """Take what has not begun of a broken stage out of the queue; as far as Slurm lets us."""
        tokens = {s.token for s in self.gate.notes().submissions.values() if s.stage == stage}
        waiting = [
            q.job
            for q in read_queue().elements.values()
            if q.token in tokens and q.phase == "pending" and q.job != self.here.name
        ]
        try:
            cancel(waiting, "--state=PENDING")
        except SlurmError as error:
            print(f"what waits was not cancelled: {error}", flush=True)

    # ------------------------------------------------------------------ leaving

    def _not_begun(self, point: PlannedPoint, answer: Answer) -> int:
        """Leave without running: quietly, or with the reason in an attempt of its own."""
        print(f"{answer.kind}: {point.stage} {point.short()} ({point.id}): {answer.reason}")
        if answer.kind == "wait":
            problem = self.here.resubmit(self.chunk, after=answer.job)
            if not problem:
                return 0
            answer = Answer("hold", f"{answer.reason}, and could not wait for it: {problem}")
        if answer.kind == "hold":
            self.tries.claim(point.id).write_failure("held", answer.reason)
        return 0

    def _leave(self, point: PlannedPoint) -> int:
        """Leave after a stop signal; first see to it that the rest is done another time."""
        name = signal.Signals(self.signal).name
        attempt = self.tries.latest(point.id)
        mine = attempt is not None and self.tries.is_mine(point.id)
        if attempt is not None and mine and attempt.read_failure() is None:
            said = f"{name}: did not save within the grace time; goes on from its last checkpoint"
            attempt.write_failure("interrupted", said)
        if attempt is not None and self.tries.superseded(attempt):
            return 0  # another job has claimed it
        if self.gate.notes().of(point.id).cancelled:
            return 0
        failure = attempt.read_failure() if attempt is not None and mine else None
        if failure is not None and failure.get("kind") != "interrupted":
            return 1
        if self.signal != signal.SIGUSR2 and not self.here.still_wanted():
            print(f"{name}: cancelled, or Slurm starts it again by itself", flush=True)
            return 0
        if attempt is not None and stuck(
            self.sweep, point.id, self.chunk.requeues, self.chunk.limit_s / 2
        ):
            said = (
                f"reached the time limit {self.chunk.requeues} times in a row without getting "
                "further; the site's time is too short for a step of this stage"
            )
            attempt.write_failure("timeout", said)
            return 1
        print(f"{name}: {self._go_on_later()}", flush=True)
        return 0

    def _go_on_later(self) -> str:
        """Requeue or resubmit this element; what came of it, in words."""
        problem = ""
        if self.chunk.on_preempt == "requeue":
            problem = self.here.requeue()
            if not problem:
                return "saved; Slurm starts this job again"
        other = self.here.resubmit(self.chunk)
        if not other:
            return "saved; goes on in a new job"
        return f"saved, but nothing goes on by itself: {'; '.join(filter(None, (problem, other)))}"
