"""The sweep command's work: plan against what is there, write it down, run it, sum up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import write_bytes
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep import queue
from sparrow_lab.sweep.difference import Difference, against_folder, stage_counts
from sparrow_lab.sweep.gpu import check_gpus, refusal_here, wants_gpu
from sparrow_lab.sweep.guards import check_folder
from sparrow_lab.sweep.lock import sweep_lock
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.preview import render
from sparrow_lab.sweep.states import PointState, left_behind, read_states
from sparrow_lab.sweep.summary import closing_lines, exit_code

if TYPE_CHECKING:
    from rich.console import Console

    from sparrow_lab.sweep.search.controller import Controller
    from sparrow_lab.sweep.slurm.cluster import Cluster
    from sparrow_lab.sweep.tracker import Tracker


MOST_PRUNED = 20
"""Points named in the preview of `--prune`."""

ROUND_S = 60.0
"""So long a search on a cluster waits for a round of its controller to end."""


def show_difference(
    console: Console, plan: Plan, difference: Difference, prune: bool = False
) -> None:
    """Say what the plan holds and what a changed file changes."""
    _say(console, f"{plan.name}: {len(plan.points)} points: {stage_counts(plan.points)}")
    if difference.new and not difference.first:
        _say(console, f"  {len(difference.kept)} kept, {len(difference.new)} new:")
        _say(console, f"    {stage_counts(difference.new)}")
    if difference.dropped:
        fate = "to be cancelled" if prune else "left alone; --prune cancels them"
        _say(console, f"  {len(difference.dropped)} no longer in the file, {fate}:")
        _say(console, f"    {stage_counts(difference.dropped)}")


def finished(sweep: SweepFolder, difference: Difference) -> dict[str, PointState] | None:
    """The states when the plan is the old one and every point is done; else None."""
    if difference.new or difference.dropped or not difference.kept:
        return None
    states = read_states(sweep)
    return states if all(s.state == "done" for s in states.values()) else None


def run_sweep(
    sweep: SweepFolder,
    plan: Plan,
    source: bytes,
    options: Options,
    console: Console,
    tracker: Tracker | None = None,
    first: int | None = None,
    stages: Mapping[str, str] | None = None,
    cluster: Cluster | None = None,
    prune: bool = False,
    search: Controller | None = None,
) -> int:
    """Run a plan in its folder and return the exit code.

    Args:
        sweep: `runs/<name>`; made if need be.
        plan: what to run.
        source: the experiment file, kept as `sweep.yaml`.
        options: how to run it; `only` is set here when `first` is given.
        console: where to speak.
        tracker: brings MLflow up to date, or None.
        first: run only so many train points with what they need.
        stages: stage functions of the workers, for tests.
        cluster: where to submit to, and whether to follow; None runs the points here.
        prune: cancel the points that are no longer in the file.
        search: of an adaptive sweep; it adds to the plan while that runs.

    Raises:
        UserError: the folder cannot be used, another launcher is at work, or the plan
            there is that of another sweep. Nothing has started then.
    """
    if search is None:
        difference = against_folder(sweep, plan)
        show_difference(console, plan, difference, prune)
        unpruned = prune and bool(left_behind(sweep, plan))
        if not unpruned and (done := finished(sweep, difference)) is not None:
            _end(console, sweep, done)
            return 0
    elif plan.points:
        against_folder(sweep, plan)  # another sweep's folder is left as it is
    check_gpus(_asking(sweep, plan, first), None if cluster is None else cluster.site)
    check_folder(sweep.path)
    try:
        with sweep_lock(sweep, 0 if search is None or cluster is None else ROUND_S):
            if search is not None:
                # only now: until the lock is held the search may go on, and its plan with it
                plan = _begin(sweep, search, cluster)
                _show_search(console, sweep, search, plan, prune)
                check_gpus(_asking(sweep, plan), None if cluster is None else cluster.site)
            difference = against_folder(sweep, plan)
            _write(sweep, plan, source, difference)
            if prune:
                _prune(sweep, plan, console)
            if first is not None:
                options = replace(options, only=frozenset(queue.first_points(plan.points, first)))
            if cluster is not None and search is not None:
                _hand_over(sweep, search, cluster, options, console, stages)
                code = 0
            elif cluster is not None:
                cluster.submit(sweep, options, console, stages)
                code = 0
            else:
                code = launch(sweep, options, console, tracker, stages, search)
            if first is not None:
                rest = sum(s.state != "done" for s in read_states(sweep).values())
                _say(console, f"{rest} points of the plan are left; without --only they run too")
        return code if cluster is None else cluster.after(sweep, console, tracker)
    except OSError as error:
        reason = error.strerror or str(error)
        where = str(error.filename or sweep.path)
        raise UserError(f"{reason}; the same command goes on from here", where) from error


def _asking(sweep: SweepFolder, plan: Plan, first: int | None = None) -> list[PlannedPoint]:
    """Points without a result that ask for a GPU, of those that the run is limited to."""
    asking = [p for p in plan.points if wants_gpu(p)]
    if asking and first is not None:
        chosen = set(queue.first_points(plan.points, first))
        asking = [p for p in asking if p.id in chosen]
    return [p for p in asking if sweep.point(p.id).read_result() is None]


def _show_search(
    console: Console, sweep: SweepFolder, search: Controller, plan: Plan, prune: bool
) -> None:
    """Say what the plan of a search holds, and what was taken up again with it."""
    if plan.points:
        show_difference(console, plan, against_folder(sweep, plan), prune)
    else:
        _say(console, f"{plan.name}: {search.method.title}: {search.method.most()}")
    if search.taken_up is not None:
        count = search.taken_up
        points = "1 point that was" if count == 1 else f"{count} points that were"
        _say(console, f"the cancelled search is taken up again, with {points} cancelled with it")


def _begin(sweep: SweepFolder, search: Controller, cluster: Cluster | None) -> Plan:
    """The plan of a search to start from; it stays that of the controller that is at work."""
    from sparrow_lab.sweep.search.at_work import controller_job

    job = controller_job(sweep)
    if not job:
        return search.begin()
    if cluster is None:
        raise UserError(
            f"a controller on a cluster runs this search ({job}); 'sparrow-lab cancel "
            f"{sweep.name}' ends it",
            str(sweep.path),
        )
    return search.begin(adopt=False)


def _hand_over(
    sweep: SweepFolder,
    search: Controller,
    cluster: Cluster,
    options: Options,
    console: Console,
    stages: Mapping[str, str] | None,
) -> None:
    """Submit the first points of a search and a controller for the rest, unless there is one."""
    from sparrow_lab.sweep.search.at_work import controller_job
    from sparrow_lab.sweep.search.cluster_round import Passing, Rounds
    from sparrow_lab.sweep.search.job import submit_controller
    from sparrow_lab.sweep.search.orders import Orders

    known = controller_job(sweep)
    poll_s = options.notes.get("poll_s")
    orders = Orders(search.config, search.source_dir, options, cluster.to_json(), stages)
    (orders if poll_s is None else replace(orders, poll_s=poll_s)).write(sweep)
    if known:
        _say(console, f"the controller goes on with this file: {known}")
        return
    try:
        goes_on = Rounds(sweep, search, cluster, options, console, stages).play()
    except Passing as error:
        raise UserError(f"the cluster does not answer: {error}") from error
    if not goes_on:
        for line in search.lines():
            _say(console, line)
        return
    _say(console, f"controller: {submit_controller(sweep, cluster.site, console)}")


def launch(
    sweep: SweepFolder,
    options: Options,
    console: Console,
    tracker: Tracker | None = None,
    stages: Mapping[str, str] | None = None,
    search: Controller | None = None,
) -> int:
    """Run what the plan in the folder still needs, under its lock; return the exit code."""
    from sparrow_lab.sweep.launch import Launcher
    from sparrow_lab.sweep.live import make_view

    launcher = Launcher(sweep, options, make_view(console), stages)
    if tracker is not None:
        launcher.began = tracker.start
    if search is not None:
        launcher.grow = search.grow
    try:
        states = launcher.run()
    except BaseException:
        if tracker is not None:
            tracker.stop()
        raise
    stopped = launcher.stop.exit_code if launcher.stop else 0
    _end(console, sweep, states, stopped)
    for line in search.lines() if search is not None else ():
        _say(console, line)
    if tracker is not None and tracker.started:
        _finish(console, tracker, bool(stopped))
    return exit_code(states, stopped)


def _write(sweep: SweepFolder, plan: Plan, source: bytes, difference: Difference) -> None:
    """Write the plan and, in the ledger, what is new and what was dropped."""
    write_bytes(sweep.source_path, source)
    sweep.write_plan(plan)
    Ledger(sweep.ledger_path).append_all(
        [{"event": "planned", "point": p.id, "stage": p.stage} for p in difference.new]
        + [{"event": "dropped", "point": p.id, "stage": p.stage} for p in difference.dropped]
    )


def _prune(sweep: SweepFolder, plan: Plan, console: Console) -> None:
    """Cancel what is left behind: its workers save and leave, its jobs are cancelled."""
    from sparrow_lab.sweep.decide import cancel_points

    if left := left_behind(sweep, plan):
        cancel_points(sweep, left, console)


def _finish(console: Console, tracker: Tracker, stopped: bool) -> None:
    """Bring MLflow up to date; after a stop leave that to the next time."""
    if stopped:
        tracker.stop()
        return
    _say(console, "bringing MLflow up to date")
    warning = tracker.finish()
    if warning:
        _say(console, f"warning: {warning}")


def _end(
    console: Console, sweep: SweepFolder, states: Mapping[str, PointState], stopped: int = 0
) -> None:
    for line in closing_lines(sweep.name, states, stopped):
        _say(console, line)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def all_done(sweep: SweepFolder) -> bool:
    """Whether every point of the plan has its result."""
    return all(point.read_result() is not None for point in sweep.points())


def dry_run(
    console: Console,
    sweep: SweepFolder,
    plan: Plan,
    points: Sequence[str],
    cluster: Cluster | None = None,
    search: Controller | None = None,
    prune: bool = False,
) -> None:
    """Show what would run: the difference and every chosen point; write nothing.

    Of a search that is what it would begin with now; the rest depends on results. With `prune`
    also what that would cancel.
    """
    difference = against_folder(sweep, plan)
    show_difference(console, plan, difference, prune)
    if prune:
        _show_prune(console, sweep, plan)
    states = read_states(sweep, plan)
    new = {p.id for p in difference.new}
    known = {i: s.state for i, s in states.items() if i not in new}
    chosen = frozenset(points)
    shown = replace(plan, points=tuple(p for p in plan.points if p.id in chosen))
    console.print(render(shown, known))
    for line in search.preview() if search is not None else ():
        _say(console, line)
    left = [p for p in shown.points if states[p.id].state != "done"]
    if cluster is not None:
        for line in cluster.preview(plan, states, points):
            _say(console, line)
    elif refusal := refusal_here(left):
        # no error: a sweep for a cluster may be looked at anywhere
        _say(console, f"it would be refused here: model.device: {refusal}")
        return
    _say(console, f"{len(left)} points would run; nothing was started")


def _show_prune(console: Console, sweep: SweepFolder, plan: Plan) -> None:
    """Say which points `--prune` would cancel."""
    left = left_behind(sweep, plan)
    if not left:
        _say(console, "  --prune would cancel nothing")
        return
    points = "1 point" if len(left) == 1 else f"{len(left)} points"
    _say(console, f"  --prune would cancel {points}:")
    for state in left[:MOST_PRUNED]:
        point = state.point
        _say(console, f"    {point.stage} {point.short()} ({point.id[:8]}), {state.state}")
    if len(left) > MOST_PRUNED:
        _say(console, f"    and {len(left) - MOST_PRUNED} more")


def source_of(path: Path) -> bytes:
    """The experiment file as it is. Raises UserError when it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(error.strerror or str(error), str(path)) from error
