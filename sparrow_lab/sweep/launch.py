"""Runs a planned sweep on this machine: starts what is ready, follows it, knows when to stop.

The launcher keeps no state of its own: what it needs is in the run folder, so that it
can be killed at any instant and the next one goes on from there, with the workers that
still live.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Event, Ledger
from sparrow_lab.runs.notes import Notes, read_notes
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.runs.process import this_process
from sparrow_lab.stages import identical
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.adopt import find_live_jobs
from sparrow_lab.sweep.gpu import wants_gpu
from sparrow_lab.sweep.guards import Breaker
from sparrow_lab.sweep.jobs import Job, start_job
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.progress import spell_time
from sparrow_lab.sweep.settle import settle
from sparrow_lab.sweep.states import PointState, State, held_by_needs, own_state, read_states
from sparrow_lab.sweep.stop import StopRequests
from sparrow_lab.sweep.tally import may_try_again
from sparrow_lab.sweep.view import QuietView, View
from sparrow_lab.sweep.workers import Workers, threads_of

TICK_S = 0.2
MOST_INTERRUPTIONS = 10
"""A point that keeps being interrupted without the launcher's wish is left after so many."""


@dataclass
class Launcher:
    """One run of a sweep. `run` returns the states of the selected points at its end.

    Args:
        sweep: the folder, with its plan written.
        options: how to run it.
        view: where to show what happens.
        stages: `module:function` by stage for the workers; the real ones by default.
        began: called once, when there is a first job.
        grow: called with the states at every turn; the points that it returns are in the plan
            from then on. None for a plan that is complete from the start.
    """

    sweep: SweepFolder
    options: Options
    view: View = field(default_factory=QuietView)
    stages: Mapping[str, str] | None = None
    began: Callable[[], None] | None = None
    grow: Callable[[Mapping[str, PointState]], Sequence[PlannedPoint]] | None = None

    plan: Plan = field(init=False)
    states: dict[str, PointState] = field(init=False)
    notes: Notes = field(init=False)
    workers: Workers = field(init=False)
    breaker: Breaker = field(init=False, default_factory=Breaker)
    stop: StopRequests = field(init=False, default_factory=StopRequests)
    _ledger: Ledger = field(init=False)
    _lost_floor: dict[str, int] = field(init=False, default_factory=dict)
    _interruptions: Counter[str] = field(init=False, default_factory=Counter)

    def __post_init__(self) -> None:
        self.sweep = SweepFolder(self.sweep.path.resolve())
        self._ledger = Ledger(self.sweep.ledger_path)
        self.workers = Workers(self.options)

    @property
    def jobs(self) -> list[Job]:
        """What runs."""
        return self.workers.jobs

    def run(self) -> dict[str, PointState]:
        """Run until nothing is left to do or a stop was asked for and the workers have gone."""
        self._open()
        with self.stop.listening():
            try:
                while self._turn():
                    time.sleep(TICK_S)
            except BaseException:
                # A bug or a full disk: the workers save and leave; nothing is left behind.
                self.workers.leave(lambda: self.stop.hard)
                raise
            finally:
                self.view.close()
        return {i: s for i, s in held_by_needs(self.states.values()).items() if self._selected(i)}

    # ------------------------------------------------------------------ one turn

    def _turn(self) -> bool:
        """Look at everything once; False when there is nothing to wait for any more."""
        self._read_news()
        for job in list(self.jobs):
            if job.alive():
                self._look_into(job)
            else:
                self.jobs.remove(job)
                self._ended(job)
        moved = False
        if self.stop:
            self.workers.stop(self.stop.hard)
            self.view.stopping(self.stop.hard, len(self.jobs), self.options.grace_s)
        else:
            self.workers.keep_time(self._is_cancelled)
            grown = self._grow()
            moved = self._start_ready() or grown
        if self.jobs and self.began is not None:
            self.began()
            self.began = None
        self.view.update(self.sweep, self.states, self.jobs, self.options)
        return moved or any(self._selected(i) for job in self.jobs for i in job.points)

    def _grow(self) -> bool:
        """Take in the points that a search has added to the plan."""
        new = self.grow(self.states) if self.grow is not None else ()
        if not new:
            return False
        self.plan = replace(self.plan, points=(*self.plan.points, *new))
        for point in new:
            self.states[point.id] = own_state(self.sweep, point, self.notes.of(point.id))
        self.view.note("planned", [p for p in new if p.stage == new[-1].stage])
        return True

    def _open(self) -> None:
        """Write that a run begins, and find out where everything stands."""
        self._ledger.append("opened", **self.options.to_json(), **this_process())
        self.plan = self.sweep.read_plan()
        self.notes = read_notes(self._ledger.read())
        self.states = read_states(self.sweep, self.plan, self.notes)
        for state in self.states.values():
            attempts = self.sweep.point(state.point.id).attempts()
            self._lost_floor[state.point.id] = attempts[-1].number if attempts else 0
            if state.state in ("held", "lost") or self._may_try_again(state):
                self.states[state.point.id] = PointState(state.point, "planned")
        self.workers.jobs = find_live_jobs(self.sweep, self.plan, self.notes)
        for job in self.jobs:
            at = [i for i in job.points if i in self.states and self._unfinished(i)][:1]
            self._mark(at, "running", "found running")
            self.view.note("found", [self._point(i) for i in at])

    def _read_news(self) -> None:
        """Follow what other commands wrote: points cancelled or sent to be tried again."""
        for event in self._ledger.news():
            self.notes.add(event)
            point_id = str(event.get("point"))
            if point_id not in self.states:
                continue
            if event["event"] == "cancelled" and self.states[point_id].state in queue.WAITING:
                self._set(point_id, "cancelled", "cancelled by hand")
            elif event["event"] == "retry":
                self._forgive(event)

    def _forgive(self, event: Event) -> None:
        """Let a point start again, and whatever was held for the same reason."""
        point_id = str(event["point"])
        if self.states[point_id].state in ("failed", "lost", "cancelled", "held"):
            self._set(point_id, "planned")
            self.breaker = Breaker()
            self._mark([i for i, s in self.states.items() if s.state == "held"], "planned")

    # ------------------------------------------------------------------ starting

    def _start_ready(self) -> bool:
        """Start what is ready, in plan order, while there is room.

        Returns whether a point was finished as another name of one that ran: what needs it may
        be ready now, with no job left that would bring about another look.
        """
        finished = False
        plain: dict[str, State] = {i: s.state for i, s in self.states.items()}
        wanted = [p for p in self.plan.points if self._selected(p.id)]
        for point in queue.ready(wanted, plain):
            if any(point.id in job.points for job in self.jobs):
                continue  # taken along by a job that was started in this turn
            held = self.breaker.holds(point.stage)
            if held:
                self._hold(point, held)
                continue
            if not self.workers.room(point):
                continue
            if not self._runs_itself(point):
                finished = finished or self.states[point.id].state == "done"
                continue
            plain = {i: s.state for i, s in self.states.items()}
            self._submit(queue.with_followers(point, wanted, plain))
        return finished

    def _runs_itself(self, point: PlannedPoint) -> bool:
        """Whether the point has to run; else it is finished, held or left waiting here."""
        owner = identical.owner_of(self.sweep, point)
        if owner == point.id:
            return True
        state = self.states.get(owner)
        if identical.write_alias(self.sweep, point, owner):
            self._ledger.append("finished", point=point.id, alias_of=owner)
            self._refresh(point.id)
            self.view.note("same", [point], f"the same run as {owner}")
            return False
        if state is not None and state.state == "failed":
            self._hold(point, f"the same run as {owner}, which failed")
            return False
        if state is not None and (
            state.state == "running" or (state.state in queue.WAITING and self._selected(owner))
        ):
            return False
        identical.take_over(self.sweep, point)
        return True

    def _submit(self, points: list[PlannedPoint]) -> None:
        """Write the intent to the ledger, then ask the scheduler."""
        token = secrets.token_hex(8)
        ids = [p.id for p in points]
        self._ledger.append_all([{"event": "submitted", "point": i, "token": token} for i in ids])
        threads = max(threads_of(p) for p in points)
        job = start_job(self.sweep, token, ids, threads, self.stages)
        job.gpu = any(map(wants_gpu, points))
        self.jobs.append(job)
        self._mark(ids[:1], "running")
        self.view.note("started", points[:1])

    # ------------------------------------------------------------------ ending

    def _look_into(self, job: Job) -> None:
        """Take in the points that a job with several has finished so far."""
        for point_id in job.points[:-1]:
            if point_id in self.states and self.states[point_id].state != "done":
                if self._unfinished(point_id):
                    return
                self._refresh(point_id)
                self._done(point_id)
                self._mark(job.points[job.points.index(point_id) + 1 :][:1], "running")

    def _done(self, point_id: str) -> None:
        state = self.states[point_id]
        self.breaker.succeeded(state.point.stage)
        self.view.note("done", [state.point], result_text(state.result or {}))

    def _ended(self, job: Job) -> None:
        """Take in how a job ended; what it did not come to waits again."""
        job.kill()  # children that outlived their worker
        for point_id, outcome in settle(job, self.options.timeout_min).items():
            if point_id not in self.states or self.states[point_id].state == "done":
                continue
            point = self._point(point_id)
            state = own_state(self.sweep, point, self.notes.of(point_id))
            if outcome != "ended" and state.state not in ("cancelled", "running"):
                self.states[point_id] = PointState(point, "planned")
                if outcome == "quiet":
                    self._interrupted(PointState(point, "interrupted", "left before it had begun"))
                continue
            self.states[point_id] = state
            if state.state == "running" and state.attempt is not None:
                # Someone else's worker has claimed the point meanwhile: follow that one.
                self.jobs.append(Job(self.sweep, "", [point_id], claims=[state.attempt]))
            elif state.state == "done":
                self._done(point_id)
            elif state.state == "interrupted":
                self._interrupted(state)
            elif state.state in ("failed", "lost"):
                self._failed(state)
            elif state.state == "cancelled":
                self.view.note("cancelled", [point])

    def _interrupted(self, state: PointState) -> None:
        point = state.point
        self.view.note("interrupted", [point], state.reason)
        self._interruptions[point.id] += 1
        if self._interruptions[point.id] >= MOST_INTERRUPTIONS and not self.stop:
            self._hold(point, f"interrupted {MOST_INTERRUPTIONS} times: {state.reason}")

    def _failed(self, state: PointState) -> None:
        point = state.point
        if self._may_try_again(state):
            self.states[point.id] = PointState(point, "planned")
            self.view.note("again", [point], state.reason)
        else:
            self.breaker.failed(point.stage, point.id, state.reason)
            self.view.note(state.state, [point], state.reason)

    def _may_try_again(self, state: PointState) -> bool:
        """Whether a failed point has retries left.

        Errors and timeouts count since the last `retry`; lost workers only within this
        run of the sweep. A user's mistake is not tried again: it would be the same.
        """
        if state.state not in ("failed", "lost"):
            return False
        point_id = state.point.id
        return may_try_again(
            self.sweep,
            point_id,
            self.notes.of(point_id).floor,
            self._lost_floor[point_id],
            self.options.retries,
        )

    # ------------------------------------------------------------------ states

    def _is_cancelled(self, job: Job) -> bool:
        """Whether the point that a job is at was cancelled from elsewhere."""
        current = next((i for i in job.points if self._unfinished(i)), None)
        return current is not None and self.notes.of(current).cancelled

    def _selected(self, point_id: str) -> bool:
        only = self.options.only
        return point_id in self.states and (only is None or point_id in only)

    def _point(self, point_id: str) -> PlannedPoint:
        return self.states[point_id].point

    def _unfinished(self, point_id: str) -> bool:
        return self.sweep.point(point_id).read_result() is None

    def _refresh(self, point_id: str) -> None:
        point = self._point(point_id)
        self.states[point_id] = own_state(self.sweep, point, self.notes.of(point_id))

    def _set(self, point_id: str, state: State, reason: str = "") -> None:
        self.states[point_id] = PointState(self._point(point_id), state, reason)

    def _mark(self, point_ids: list[str], state: State, reason: str = "") -> None:
        for point_id in point_ids:
            if point_id in self.states and self.states[point_id].state != "done":
                self._set(point_id, state, reason)

    def _hold(self, point: PlannedPoint, reason: str) -> None:
        self._set(point.id, "held", reason)
        self._ledger.append("held", point=point.id, reason=reason)
        self.view.note("held", [point], reason)


def result_text(result: Mapping[str, Any]) -> str:
    """`p5 0.871, evaluation 0.310, 35 s`: what a finished point is worth a line.

    A training run's p5 is that of its last step's few answers, and so called.
    """
    metrics = result.get("metrics") or {}
    p5 = "last step's p5" if result.get("stage") == "train" else "p5"
    names = {"acceptance/p05": p5, "evaluate/reward": "evaluation"}
    parts = [f"{short} {float(metrics[n]):.3f}" for n, short in names.items() if n in metrics]
    return ", ".join([*parts, spell_time(float(result.get("seconds") or 0))])
