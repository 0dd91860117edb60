"""Decisions about points of a sweep: cancel them, or have them tried again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import read_notes
from sparrow_lab.runs.search import search_lines
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.adopt import find_live_jobs
from sparrow_lab.sweep.guards import check_folder
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.lock import lock_owner, sweep_lock
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import ROUND_S, launch
from sparrow_lab.sweep.search.controller import stop_search
from sparrow_lab.sweep.select import matching, parse_where
from sparrow_lab.sweep.settle import settle
from sparrow_lab.sweep.states import PointState, left_behind, read_states
from sparrow_lab.sweep.tracker import Tracker

if TYPE_CHECKING:
    from rich.console import Console

TICK_S = 0.2


def cancel(
    sweep: SweepFolder, where: Sequence[str], console: Console, grace_s: float | None = None
) -> int:
    """Cancel the unfinished points that `where` chooses; when it is empty all of them, also those
    that have left the file.

    The decision is written first, so that a launcher and the workers see it. Running
    points are asked to save and leave, and killed after the grace. With the whole of an
    adaptive sweep its search is cancelled too. Returns 0.
    """
    plan = sweep.read_plan()
    if not where and stop_search(sweep):
        console.print("the search proposes nothing more", highlight=False)
    chosen = {p.id for p in matching(plan.points, parse_where(where))}
    states = read_states(sweep, plan)
    now = [s for i, s in states.items() if i in chosen and s.state not in ("done", "cancelled")]
    if not where:
        now += left_behind(sweep, plan)
    cancel_points(sweep, now, console, grace_s)
    return 0


def cancel_points(
    sweep: SweepFolder,
    now: Sequence[PointState],
    console: Console,
    grace_s: float | None = None,
) -> None:
    """Cancel points, which may have left the plan: in the ledger, here, and on a cluster."""
    ledger = Ledger(sweep.ledger_path)
    ledger.append_all([{"event": "cancelled", "point": s.point.id} for s in now])
    notes = read_notes(ledger.read())
    ids = {s.point.id for s in now}
    plan = sweep.read_plan()
    jobs = [job for job in find_live_jobs(sweep, plan, notes) if _is_at(job, ids)]
    if grace_s is None:
        grace_s = float(notes.opened.get("grace_s", Options.grace_s))
    if jobs:
        console.print(f"asking {count(len(jobs), 'worker')} to save and leave", highlight=False)
    _end_jobs(jobs, grace_s)
    if lock_owner(sweep) is None:
        for job in jobs:
            settle(job, 0)
    running = sum(s.state == "running" for s in now)
    said = f"{count(len(now), 'point')} cancelled, {running} of them running until now"
    console.print(said, highlight=False)
    if any(notes.submission_of(i) for i in ids):
        from sparrow_lab.sweep.slurm.stop import cancel_jobs
        from sparrow_lab.sweep.slurm.twins import left_without

        console.print(cancel_jobs(sweep, notes, ids), highlight=False)
        if twins := [i for i in left_without(sweep, ids) if i not in ids]:
            said = f"{count(len(twins), 'other name')} of the same runs: the same command runs them"
            console.print(said, highlight=False)


def retry(
    sweep: SweepFolder,
    from_states: Sequence[str],
    where: Sequence[str],
    console: Console,
    parallel: int | None = None,
) -> int:
    """Forgive the attempts so far of the chosen points, and run them and what they hold.

    Returns the exit code of that run; 0 when there is nothing to retry, or when a
    launcher that is running takes the points up.
    """
    plan = sweep.read_plan()
    chosen = {p.id for p in matching(plan.points, parse_where(where))}
    states = read_states(sweep, plan)
    again = [s for i, s in states.items() if i in chosen and s.state in from_states]
    if not again:
        console.print(f"{sweep.name}: no point to retry ({', '.join(from_states)})")
        return 0
    if lock_owner(sweep) is not None:
        _forgive(sweep, again)
        said = f"{count(len(again), 'point')} handed to the running launcher"
        console.print(said, highlight=False)
        return 0
    check_folder(sweep.path)
    searching = bool(search_lines(sweep))
    if searching:
        said = f"'sparrow-lab sweep' with the file of {sweep.name} takes results into its search"
        console.print(said, highlight=False, soft_wrap=True)
    with sweep_lock(sweep, ROUND_S if searching else 0.0):
        _forgive(sweep, again)
        opened = read_notes(Ledger(sweep.ledger_path).read()).opened
        ids = queue.with_dependants(plan.points, {s.point.id for s in again})
        options = Options.from_json(opened, frozenset(queue.with_needs(plan.points, ids)))
        if parallel is not None:
            options = Options.from_json({**options.to_json(), "parallel": parallel}, options.only)
        waiting = sum(states[i].state in ("held", "planned") for i in ids if i in states)
        console.print(f"{sweep.name}: {_trying(again, waiting)}", highlight=False)
        if options.notes.get("site"):
            from sparrow_lab.sweep.slurm.cluster import Cluster

            Cluster.from_json(options.notes["site"]).submit(sweep, options, console)
            return 0
        return launch(sweep, options, console, _tracker(sweep, options))


def _trying(again: Sequence[PointState], waiting: int) -> str:
    """`trying 2 failed points again, and what waits for that: 2 points`."""
    counts = Counter(s.state for s in again)
    kinds = " and ".join(count(number, f"{state} point") for state, number in counts.items())
    verb = "taking up" if set(counts) == {"cancelled"} else "trying"
    rest = f", and what waits for that: {count(waiting, 'point')}" if waiting else ""
    return f"{verb} {kinds} again{rest}"


def _forgive(sweep: SweepFolder, states: Sequence[PointState]) -> None:
    """Write that attempts so far no longer count."""
    numbers = {s.point.id: s.attempt.number if s.attempt else 0 for s in states}
    Ledger(sweep.ledger_path).append_all(
        [{"event": "retry", "point": i, "after": number} for i, number in numbers.items()]
    )


def _tracker(sweep: SweepFolder, options: Options) -> Tracker | None:
    """As the sweep was last run."""
    tracking = options.notes.get("tracking", {})
    return Tracker(sweep, tracking.get("uri")) if tracking.get("enabled") else None


def _is_at(job: Job, ids: set[str]) -> bool:
    """Whether the point that the job works on, or comes to next, is one of these."""
    unfinished = [i for i in job.points if job.sweep.point(i).read_result() is None]
    return bool(unfinished) and unfinished[0] in ids


def _end_jobs(jobs: Sequence[Job], grace_s: float) -> None:
    """Ask, wait, and after the grace kill."""
    deadline = time.monotonic() + grace_s
    while alive := [job for job in jobs if job.alive()]:
        for job in alive:
            job.ask_to_stop("cancelled")
            if time.monotonic() > deadline:
                job.kill()
        time.sleep(TICK_S)


def count(number: int, noun: str) -> str:
    """`1 point`, `2 points`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
