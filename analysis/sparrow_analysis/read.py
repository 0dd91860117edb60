"""From a sweep's folder to frames. Reads through `sparrow_lab.runs` only; follows aliases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from sparrow_analysis.frames import STATISTICS, SweepFrames, frame, number, records
from sparrow_analysis.read_curves import SCHEDULES, UNREADABLE, left_out_line, read_curves
from sparrow_lab.config.schema import VerdictConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.damage import Damaged
from sparrow_lab.runs.events import Events, read_events
from sparrow_lab.runs.layout import PointFolder, SweepFolder, find_sweep, runs_root
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.runs.search import search_lines

TASKS = {
    "id": "object",
    "stage": "object",
    "name": "object",
    "state": "object",
    "reason": "object",
    "seconds": "float64",
    "alias_of": "object",
}
RUNS = {
    "run": "object",
    "names": "object",
    "model": "object",
    "page_size": "Int64",
    "tau": "float64",
    "schedule": "object",
    "level": "object",
    "dense": "bool",
    "seed": "Int64",
    "group": "object",
    "controls": "object",
    "task": "object",
    "planned_steps": "Int64",
    "last_step": "Int64",
    "finished": "bool",
    "state": "object",
    **dict.fromkeys((*STATISTICS, "p05_low", "p05_high", "ceiling_p05"), "float64"),
    "tokens": "Int64",
    "prompts": "Int64",
    "kv_tokens": "float64",
    "reads": "float64",
    "eflops": "float64",
    "dense_reads": "float64",
    "dense_eflops": "float64",
    "speedup": "float64",
    "hardware": "object",
    "final_reward": "float64",
    "seconds": "float64",
    "time_rollout_s": "float64",
    "time_train_s": "float64",
    "time_evaluate_s": "float64",
}
FROM_SCHEDULE = [
    *(
        k
        for k in SCHEDULES
        if k in RUNS and k not in ("page_size", "model", "tau", "level", "dense")
    ),
]
EVALUATIONS = {"run": "object", "step": "Int64", "value": "float64"}
TRAINING = {"run": "object", "step": "Int64"}
BY_LENGTH = {
    "run": "object",
    "step": "Int64",
    "bin_start": "Int64",
    "p05": "float64",
    "mean": "float64",
    "tokens": "float64",
}
NOT_A_SETTING = {"tau", "seed"}
"""Label fields that tell levels and repetitions of one setting apart."""

_BIN = re.compile(r"acceptance/bin_(\d+)/(p05|mean|tokens)")


def read_sweep(name_or_folder: str | Path, root: Path | None = None) -> SweepFrames:
    """Read all that a sweep has measured so far.

    Raises:
        UserError: there is no such sweep, or its verdict cannot be read.
    """
    sweep = find_sweep(str(name_or_folder), root)
    plan = sweep.read_plan()
    try:
        rule = VerdictConfig.model_validate(plan.verdict)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"verdict: {first['msg']}", str(sweep.plan_path)) from None
    problems = [(p, sweep.point(p.id).result_problem()) for p in plan.points]
    left_out = [left_out_line(point, text) for point, text in problems if text]
    curves = read_curves(sweep, plan.points)
    left_out += curves.left_out
    notes: list[str] = []
    whole = tuple(point for point, text in problems if not text)
    runs, events = _read_runs(sweep, whole, curves.schedules, rule.metric, left_out, notes)
    return SweepFrames(
        name=plan.name,
        path=sweep.path,
        rule=rule,
        tasks=frame([_task_row(sweep, p) for p in plan.points], TASKS),
        runs=runs,
        evaluations=_evaluations(events, rule.metric),
        training=_training(events),
        by_length=_by_length(events),
        curves=curves.curves,
        pooled=curves.pooled,
        schedules=curves.schedules,
        steps=curves.steps,
        measured=curves.measured,
        left_out=left_out,
        notes=notes,
        search=search_lines(sweep),
    )


def latest_sweep(root: Path | None = None) -> Path:
    """The sweep under `root` ($SPARROW_RUNS, ./runs) whose ledger or plan changed last.

    Raises:
        UserError: there is none.
    """
    base = runs_root(root)
    plans = sorted(base.glob("*/plan.json"), key=_changed)
    if not plans:
        raise UserError("there is no sweep here; run 'sparrow-lab sweep' first", str(base))
    return plans[-1].parent


def _changed(plan: Path) -> float:
    ledger = plan.with_name("ledger.jsonl")
    return max(p.stat().st_mtime for p in (plan, ledger) if p.exists())


def state_of(folder: PointFolder) -> tuple[str, str]:
    """Where a point stands by its files alone, and why: (state, reason).

    `started` means that an attempt neither ended nor failed; whether its process still lives is
    the business of `sparrow-lab status`.
    """
    if folder.read_result() is not None:
        return "done", ""
    if problem := folder.result_problem():
        return "damaged", problem
    attempts = folder.attempts()
    if not attempts:
        return "planned", ""
    failure = attempts[-1].read_failure()
    if failure is None:
        return "started", ""
    kind = "interrupted" if failure.get("kind") == "interrupted" else "failed"
    return kind, str(failure.get("message", ""))


def _task_row(sweep: SweepFolder, point: PlannedPoint) -> dict[str, object]:
    folder = sweep.point(point.id)
    result = folder.read_result() or {}
    state, reason = state_of(folder)
    return {
        "id": point.id,
        "stage": point.stage,
        "name": point.short(),
        "state": state,
        "reason": reason,
        "seconds": number(result.get("seconds")),
        "alias_of": result.get("alias_of") or "",
    }


def _read_runs(
    sweep: SweepFolder,
    points: tuple[PlannedPoint, ...],
    schedules: pd.DataFrame,
    metric: str,
    left_out: list[str],
    notes: list[str],
) -> tuple[pd.DataFrame, dict[str, Events]]:
    """The runs, aliases folded into the run they are, and the events of each.

    Runs that cannot be read, or lack what `metric` needs, go to `left_out` instead.
    """
    by_run: dict[str, list[PlannedPoint]] = {}
    for point in points:
        if point.stage == "train":
            by_run.setdefault(sweep.point(point.id).followed().id, []).append(point)
    finals = _final_rewards(sweep, points)
    measured = {str(row["schedule_id"]): row for row in records(schedules)}
    settings = _settings([named[0] for named in by_run.values()], measured)
    rows: list[dict[str, object]] = []
    events: dict[str, Events] = {}
    for run, named in by_run.items():
        # the run's own point if it is in the plan, else (it was dropped) one of its other names
        point = next((p for p in named if p.id == run), named[0])
        folder = sweep.point(run)
        schedule = measured.get(point.needs.get("schedule", ""), {})
        try:
            found = _whole_events(folder, point, metric)
            row = _run_row(folder, point, found, schedule)
        except UNREADABLE as error:
            left_out.append(left_out_line(point, error))
            continue
        events[run] = found
        if found.dropped_lines:
            count = found.dropped_lines
            notes.append(f"run {point.short()} ({run}): {count} unreadable event lines left out")
        rows.append(
            {
                **settings[named[0].id],
                **row,
                "names": " = ".join(dict.fromkeys(_schedule_name(p, measured) for p in named)),
                "final_reward": finals.get(run, float("nan")),
            }
        )
    return frame(rows, RUNS), events


def _whole_events(folder: PointFolder, point: PlannedPoint, metric: str) -> Events:
    """The events of a run; those of a finished one must have every evaluation.

    Raises:
        Damaged: a file cannot be read, or part of it is gone.
    """
    if problem := folder.result_problem():  # its other names are in the plan, it is not
        raise Damaged(folder.path / "result.json", problem.partition(": ")[2])
    events = read_events(folder)
    train = point.config.get("train", {})
    last, every = train.get("steps"), train.get("evaluate_every")
    if folder.read_result() is None or last is None or every is None:
        return events
    judged = metric if metric.startswith("evaluate/") else "evaluate/reward"
    due = {*range(0, int(last), int(every)), int(last)}
    missing = sorted(due.difference(events.series(judged)[0]))
    if missing:
        steps = ", ".join(map(str, missing[:3])) + (", ..." if len(missing) > 3 else "")
        path = folder.path / "attempts" / "*" / "events"
        raise Damaged(path, f"the run is done, but its evaluations at step {steps} are gone")
    return events


def _run_row(
    folder: PointFolder, point: PlannedPoint, events: Events, schedule: Mapping[str, Any]
) -> dict[str, object]:
    result = folder.read_result() or {}
    config, steps = point.config, events.steps
    planned = config.get("train", {}).get("steps")
    last = steps[-1] if steps else None
    times = _times(result, events)
    dense = _is_dense(point, {point.needs.get("schedule", ""): schedule})
    tau = point.label.get("tau")
    reached = last is not None and planned is not None and last >= int(planned) - 1
    return {
        "run": folder.id,
        "model": str(point.label.get("model") or config.get("model", {}).get("name", "")),
        "page_size": None if dense else config.get("sparsity", {}).get("page_size"),
        "tau": tau if isinstance(tau, (int, float)) else None,
        "schedule": str(schedule.get("name") or _level_name(point)),
        "level": str(schedule.get("level") or point.needs.get("schedule", "")),
        "dense": dense,
        "seed": point.label.get("seed", config.get("seed")),
        "task": str(config.get("task", {}).get("name", "")),
        "planned_steps": planned,
        "last_step": last,
        "finished": bool(result) and reached,
        "state": state_of(folder)[0],
        **{k: schedule.get(k) for k in FROM_SCHEDULE},
        "seconds": number(result.get("seconds")),
        **times,
    }


def _times(result: Mapping[str, Any], events: Events) -> dict[str, object]:
    """Seconds by part: the result's, or while there is none the sum over the events so far."""
    recorded = result.get("time") or {}
    made: dict[str, object] = {}
    for part in ("rollout_s", "train_s", "evaluate_s"):
        values = events.series(f"time/{part}")[1]
        summed = sum(values) if values else float("nan")
        made[f"time_{part}"] = number(recorded[part]) if part in recorded else summed
    return made


def _final_rewards(sweep: SweepFolder, points: tuple[PlannedPoint, ...]) -> dict[str, float]:
    """By run, the evaluation on prompts that training never looked at."""
    finals: dict[str, float] = {}
    for point in points:
        if point.stage == "evaluate" and "train" in point.needs:
            result = sweep.point(point.id).followed().read_result()
            if result is not None:
                run = sweep.point(point.needs["train"]).followed().id
                finals[run] = number((result.get("metrics") or {}).get("evaluate/reward"))
    return finals


def _level_name(point: PlannedPoint) -> str:
    tau = point.label.get("tau")
    return f"tau={tau:g}" if isinstance(tau, (int, float)) else str(tau or "")


def _schedule_name(point: PlannedPoint, measured: Mapping[str, Mapping[str, Any]]) -> str:
    schedule = measured.get(point.needs.get("schedule", ""), {})
    return str(schedule.get("name") or _level_name(point))


def _settings(
    points: list[PlannedPoint], measured: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, object]]:
    """By point: its group, the name of its controls, and every further swept field.

    A group is what one threshold is sought for: all that was swept except schedule and seed. A
    dense run has no page size, so it is a control of every group that agrees in the rest.
    """
    fields = [
        k for k in dict.fromkeys(k for p in points for k in p.label) if k not in NOT_A_SETTING
    ]
    values = {k: {str(p.label.get(k)) for p in points if k in p.label} for k in fields}
    always = [k for k in ("model", "page_size") if k in fields]
    told = always + [k for k in fields if k not in always and len(values[k]) > 1]
    dense_ones = {p.id for p in points if _is_dense(p, measured)}
    with_controls = {k for p in points if p.id in dense_ones for k in p.label} - {"page_size"}
    made: dict[str, dict[str, object]] = {}
    for point in points:
        dense = point.id in dense_ones
        mine = [k for k in told if k in point.label and not (dense and k == "page_size")]
        shared = [k for k in mine if k in with_controls]
        extra = {k: v for k, v in point.label.items() if k not in NOT_A_SETTING and k not in RUNS}
        made[point.id] = {
            **extra,
            "group": " · ".join(_setting(k, point.label[k]) for k in mine),
            "controls": " · ".join(_setting(k, point.label[k]) for k in shared),
        }
    return made


def _is_dense(point: PlannedPoint, measured: Mapping[str, Mapping[str, Any]]) -> bool:
    """By the schedule that was made; before that, by what was asked for."""
    schedule = measured.get(point.needs.get("schedule", ""), {})
    return bool(schedule.get("dense", point.label.get("tau") == "dense"))


def _setting(name: str, value: object) -> str:
    if name == "model":
        return str(value)
    return f"{'page' if name == 'page_size' else name} {value}"


def _evaluations(events: dict[str, Events], metric: str) -> pd.DataFrame:
    rows: list[dict[str, object]] = [
        {"run": run, "step": step, "value": value}
        for run, found in events.items()
        for step, value in zip(*found.series(metric), strict=True)
    ]
    made = frame(rows, EVALUATIONS)
    finite = made["value"].abs() < float("inf")
    return made.assign(value=made["value"].where(finite))


def _training(events: dict[str, Events]) -> pd.DataFrame:
    rows: list[dict[str, object]] = [
        {"run": run, "step": step, **{k: v for k, v in metrics.items() if not _BIN.fullmatch(k)}}
        for run, found in events.items()
        for step, _, _, metrics in found.rows
    ]
    return frame(rows, TRAINING)


def _by_length(events: dict[str, Events]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for run, found in events.items():
        for step, _, _, metrics in found.rows:
            bins: dict[int, dict[str, object]] = {}
            for name, value in metrics.items():
                match = _BIN.fullmatch(name)
                if match:
                    start = int(match[1])
                    row = bins.setdefault(start, {"run": run, "step": step, "bin_start": start})
                    row[match[2]] = value
            rows += [bins[start] for start in sorted(bins)]
    return frame(rows, BY_LENGTH)
