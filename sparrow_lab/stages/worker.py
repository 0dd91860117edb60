"""What a job runs: one or several points, one after the other, each as a claimed attempt."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError
from sparrow_lab.runs import events, histograms
from sparrow_lab.runs.attempt import AttemptFolder, FailureKind
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger, NoLedger
from sparrow_lab.runs.notes import read_notes
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.runs.process import this_process
from sparrow_lab.stages import identical
from sparrow_lab.stages.context import REMADE, Interrupted, StageContext
from sparrow_lab.stages.logs import logged_to
from sparrow_lab.stages.signals import StopFlag, stop_on_signals

Stage = Callable[[StageContext], dict[str, Any]]

STAGES: dict[str, str] = {
    "calibrate": "sparrow_lab.stages.calibrate:run",
    "schedule": "sparrow_lab.stages.schedule:run",
    "train": "sparrow_lab.stages.train:run",
    "evaluate": "sparrow_lab.stages.evaluate:run",
}
"""Where each stage's function lies; imported when the stage runs."""


def run_task(
    sweep_dir: str,
    point_ids: Iterable[str],
    stages: Mapping[str, str] | None = None,
    token: str | None = None,
    on_cluster: Mapping[str, Any] | None = None,
) -> None:
    """Run the points of a job in order; a point that is done is passed over.

    Args:
        sweep_dir: the sweep's folder.
        point_ids: ids of the plan, each after those it needs.
        stages: `module:function` by stage; `STAGES` by default.
        token: name of the job, kept in the claims.
        on_cluster: what a scheduler calls the job, kept in the claims; None on this machine.
            On a cluster nothing is written to the ledger: many nodes cannot append to one
            file of a network file system.

    The ledger is read before each point: one that was cancelled meanwhile is not begun.
    A stop signal, or a claim lost to a later attempt, ends the job quietly with a
    failure record of kind `interrupted`. Any exception of a stage is recorded and
    raised again, so that the job fails too; later points of the job are not tried.
    """
    sweep = SweepFolder(Path(sweep_dir))
    with stop_on_signals(StopFlag()) as stop:
        for point_id in point_ids:
            point = sweep.point(point_id).read_point()
            notes = read_notes(Ledger(sweep.ledger_path).read())
            if stop or notes.of(point_id).cancelled:
                return
            if not run_point(sweep, point, stop, stages or STAGES, token, on_cluster):
                return


def run_point(
    sweep: SweepFolder,
    point: PlannedPoint,
    stop: StopFlag,
    stages: Mapping[str, str],
    token: str | None = None,
    on_cluster: Mapping[str, Any] | None = None,
) -> bool:
    """One attempt at one point; True when the point is done, False when interrupted."""
    # here, because whoever asks which runs are one and the same loads this file too
    from sparrow_lab.config.schema import PointConfig

    folder = sweep.point(point.id)
    if folder.read_result() is not None:
        return True
    folder.write_point(point)
    previous = folder.attempts()
    ledger: Ledger | NoLedger = NoLedger() if on_cluster else Ledger(sweep.ledger_path)
    owner_of_claim = {**this_process(), "token": token}
    attempt = folder.new_attempt(
        {**owner_of_claim, "slurm": dict(on_cluster)} if on_cluster else owner_of_claim
    )
    ledger.append("started", point=point.id, attempt=attempt.number, token=token, pid=os.getpid())
    with logged_to(attempt.log_path):
        try:
            if folder.read_result() is not None:
                raise Interrupted("another worker has just finished this point")
            owner = _ready(sweep, point)
            if owner == point.id:
                config = PointConfig.model_validate(point.config)
                context = StageContext(
                    sweep, folder, point, config, attempt, stop, previous=previous
                )
                _run_stage(context, stages)
            elif not identical.write_alias(sweep, point, owner):
                raise Interrupted(f"the same run as {owner}, which is not done")
        except Interrupted as reason:
            message = str(reason) or stop.reason or "asked to stop"
            print(f"interrupted: {message}")
            _record(ledger, point, attempt, "interrupted", message)
            return folder.read_result() is not None
        except BaseException as error:
            if isinstance(error, UserError):
                print(f"error: {error}")
            else:
                traceback.print_exc()
            _record(ledger, point, attempt, "error", one_line(error), error)
            raise
    ledger.append("finished", point=point.id, attempt=attempt.number)
    return True


def _ready(sweep: SweepFolder, point: PlannedPoint) -> str:
    """Check what the point needs; return the id of the point that runs this run."""
    for stage, needed in point.needs.items():
        if sweep.point(needed).read_result() is not None:
            continue
        if problem := sweep.point(needed).result_problem():
            raise UserError(f"{problem}; {REMADE}", str(sweep.point(needed).path))
        raise RuntimeError(f"{point.stage} needs the {stage} of {needed}, which is not done")
    return identical.owner_of(sweep, point)


def _run_stage(context: StageContext, stages: Mapping[str, str]) -> None:
    """Call the stage's function, then compact what it measured and write the result."""
    point, attempt = context.point, context.attempt
    started = time.time()
    print(f"{point.stage} {point.short()} ({point.id}), attempt {attempt.number}", flush=True)
    function = _load(point.stage, stages)
    _limit_threads(context.config.threads)
    given = function(context)
    if not isinstance(given, dict):
        cause = given if isinstance(given, BaseException) else None
        said = f": {one_line(given)}" if cause else ""
        name = type(given).__name__
        raise TypeError(f"stage {point.stage} returned {name}, not a result{said}") from cause
    finished = time.time()
    events.compact(attempt)
    histograms.compact(attempt)
    if not attempt.still_owner():
        raise Interrupted("a later attempt has claimed this point")
    result = {
        "stage": point.stage,
        "attempt": attempt.number,
        "started": started,
        "finished": finished,
        "seconds": finished - started,
        "metrics": {},
        "time": {},
        "alias_of": None,
        **given,
    }
    context.folder.write_result(result)


def _record(
    ledger: Ledger | NoLedger,
    point: PlannedPoint,
    attempt: AttemptFolder,
    kind: FailureKind,
    message: str,
    error: BaseException | None = None,
) -> None:
    """Put the end of an attempt into its folder and the ledger, as far as the disk lets us."""
    name = type(error).__name__ if error is not None else ""
    mistake = error is None or isinstance(error, UserError)
    trace = "" if mistake else "".join(traceback.format_exception(error))
    try:
        attempt.write_failure(kind, message, name, trace)
        event = "interrupted" if kind == "interrupted" else "failed"
        ledger.append(event, point=point.id, attempt=attempt.number, message=message)
    except OSError as full:
        print(f"could not record the failure: {full}", file=sys.stderr)


def _load(stage: str, stages: Mapping[str, str]) -> Stage:
    """Import the function of a stage. Raises UserError for a stage without one."""
    if stage not in stages:
        raise UserError(f"there is no stage '{stage}'; there are {', '.join(stages)}")
    module, _, name = stages[stage].partition(":")
    function: Stage = getattr(import_module(module), name)
    return function


def _limit_threads(threads: int) -> None:
    """Hold torch, if the stage has imported it, to the threads that the point's id names."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def one_line(error: BaseException) -> str:
    """The type and first line of an exception; a user's mistake without its type."""
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    if isinstance(error, UserError) and first:
        return first
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
