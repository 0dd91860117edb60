"""`status`: where each point of a sweep stands, as data and as a table. Reads only."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from sparrow_lab.runs.layout import SweepFolder, spelled
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import read_notes
from sparrow_lab.runs.search import search_lines
from sparrow_lab.sweep.guards import default_parallel
from sparrow_lab.sweep.lock import lock_owner
from sparrow_lab.sweep.progress import Progress, progress_of, time_left
from sparrow_lab.sweep.search.at_work import controller_job, why_not_begun
from sparrow_lab.sweep.slurm.detail import with_detail
from sparrow_lab.sweep.slurm.squeue import Queue, read_queue
from sparrow_lab.sweep.states import ON_CLUSTER, STATES, PointState, read_states, still_at_work
from sparrow_lab.sweep.table import by_stage, heading, point_lines, running_table

MOST_REASONS = 6
PLURALS = (
    ("waits ", "wait "),
    ("asks ", "ask "),
    ("is held", "are held"),
    ("it needs", "they need"),
)
SHOWN_METRICS = ("acceptance/p05", "evaluate/reward", "evaluate/peak")


class Status:
    """A sweep at one moment."""

    def __init__(self, sweep: SweepFolder) -> None:
        self.sweep = sweep
        self.notes = read_notes(Ledger(sweep.ledger_path).read())
        self.notice = ""
        self._queue: Queue | None = None
        plan = sweep.read_plan()
        states = read_states(sweep, plan, self.notes, self._ask)
        self.states: dict[str, PointState] = with_detail(states, self.notes)
        self.running: dict[str, Progress] = {
            i: progress_of(s.attempt) for i, s in self.states.items() if s.state == "running"
        }
        self.left_over = still_at_work(sweep, plan, self.notes, self._ask)
        self.launcher = lock_owner(sweep)
        self.controller = controller_job(sweep)
        self.search = search_lines(sweep)

    def _ask(self) -> Queue:
        """Read the cluster's queue, once; one that does not answer is one line of notice."""
        queue = self._queue = self._queue or read_queue()
        if queue.error:
            self.notice = f"the queue is not known, only files: {queue.error}"
        return queue

    @property
    def over(self) -> bool:
        """Nothing runs or waits in a queue, and nobody is there to start anything."""
        busy = any(s.state in ON_CLUSTER for s in self.states.values())
        return not busy and self.launcher is None and not self.controller

    def line(self) -> str:
        """The heading alone, as plain text."""
        return heading(self.sweep.name, self.states, self.left()).plain

    def waiting(self) -> list[str]:
        """Why points wait in a cluster's queue, one line a reason, most frequent first."""
        why = Counter(s.reason for s in self.states.values() if s.state == "pending")
        named = [(reason, count) for reason, count in why.most_common(MOST_REASONS) if reason]
        return [f"pending: {count} {_of(count, reason)}" for reason, count in named]

    def dropped(self) -> list[str]:
        """One line on points that are no longer in the file and still wait or run, if any do."""
        counts = Counter(s.state for s in self.left_over)
        if not counts:
            return []
        said = ", ".join(f"{counts[s]} {s}" for s in STATES if counts[s])
        return [f"no longer in the file: {said}; 'sweep ... --prune' or 'cancel' ends them"]

    def next_steps(self) -> list[str]:
        """What goes on with points that were lost or have failed, once nothing else does."""
        counts = Counter(s.state for s in self.states.values())
        said = []
        if counts["lost"] and self.over:
            what = (
                "lost points again, and what they hold" if counts["held"] else "lost points again"
            )
            said.append(f"the same 'sparrow-lab sweep' command tries {what}")
        if counts["failed"] and self.over:
            again = f"'sparrow-lab retry {self.sweep.name} --failed'"
            said.append(f"{again} tries failed points again")
        return said

    def left(self) -> float | None:
        """Seconds until all is done, if that can be told."""
        workers = max(1, len(self.running)) if self.running else default_parallel(1)
        return time_left(self.states.values(), self.running, workers)

    def to_json(self) -> dict[str, Any]:
        """{"name", "path", "launcher", "counts", "stages", "points"}; NaN as text."""
        counts = Counter(s.state for s in self.states.values())
        stages: dict[str, Counter[str]] = {}
        for state in self.states.values():
            stages.setdefault(state.point.stage, Counter())[state.state] += 1
        data = {
            "schema": 1,
            "name": self.sweep.name,
            "path": str(self.sweep.path),
            "launcher": self.launcher,
            "notice": self.notice or None,
            "controller": self.controller or None,
            "search": self.search,
            "dropped": [self._point_json(s) for s in self.left_over],
            "counts": {s: counts[s] for s in STATES},
            "stages": {stage: dict(c) for stage, c in stages.items()},
            "points": [self._point_json(s) for s in self.states.values()],
        }
        plain: dict[str, Any] = spelled(data)
        return plain

    def table(self, everything: bool = False) -> RenderableType:
        """The overview, what runs, and one line a point that is not simply done or planned.

        `everything` lists every point.
        """
        parts: list[RenderableType] = [
            heading(self.sweep.name, self.states, self.left()),
            by_stage(self.states),
        ]
        if self.notice:
            parts.append(Text(self.notice, style="yellow"))
        parts.extend(Text(line) for line in [*self.waiting(), *self.dropped()])
        if self.running:
            parts.append(running_table(self.states, self.running))
        quiet = () if everything else ("done", "planned", "running", "pending", "submitted")
        rows = [s for s in self.states.values() if s.state not in quiet or s.same_as or s.twin_of]
        parts.extend(point_lines(rows, self.states))
        parts.extend(Text(line) for line in [*self.next_steps(), *self.search])
        if said := self.controller or why_not_begun(self.sweep):
            parts.append(Text(f"controller: {said}"))
        return Group(*parts)

    def _point_json(self, state: PointState) -> dict[str, Any]:
        metrics = (state.result or {}).get("metrics", {})
        progress = self.running.get(state.point.id)
        return {
            "id": state.point.id,
            "stage": state.point.stage,
            "label": state.point.label,
            "needs": state.point.needs,
            "state": state.state,
            "reason": state.reason,
            "job": state.job or None,
            "attempt": state.attempt.number if state.attempt else _attempt(state.result),
            "same_as": state.same_as,
            "log": str(state.log) if state.log is not None else None,
            "seconds": (state.result or {}).get("seconds"),
            "metrics": {k: metrics[k] for k in SHOWN_METRICS if k in metrics},
            "progress": None
            if progress is None
            else {
                "done": progress.done,
                "total": progress.total,
                "note": progress.note,
                "left_s": progress.left,
                "acceptance/p05": progress.p05,
                "evaluate/reward": progress.evaluation,
            },
        }


def _of(count: int, reason: str) -> str:
    """A reason of one as one of many: `waits` becomes `wait`."""
    if count > 1:
        for one, many in PLURALS:
            reason = reason.replace(one, many)
    return reason


def _attempt(result: dict[str, Any] | None) -> int:
    return int(result.get("attempt") or 0) if result else 0
