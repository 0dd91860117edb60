"""How a trial ended, from the states and files of its points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from sparrow_lab.config.methods import OptunaConfig
from sparrow_lab.config.schema import VerdictConfig
from sparrow_lab.runs.damage import Damaged
from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.verdict import judge
from sparrow_lab.sweep.search.trials import Outcome, Trial
from sparrow_lab.sweep.states import BLOCKING, PointState

ACROSS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}

Ended = Literal["done", "blocked", ""]


def value_outcome(
    trial: Trial, states: Mapping[str, PointState], settings: OptunaConfig
) -> Outcome | None:
    """The value that Optuna is told; None while a point of the trial may still get there.

    Failed when a point failed, was lost, cancelled or held, when a result has no such metric,
    or when the metric is not finite.
    """
    ends = {i: _ended(states.get(i)) for i in trial.points}
    if "" in ends.values():
        return None
    blocked = [states[i] for i, end in ends.items() if end == "blocked"]
    if blocked:
        return Outcome("failed", None, _why(blocked[0]))
    values = []
    for point_id in trial.points:
        metrics = (states[point_id].result or {}).get("metrics") or {}
        if settings.metric not in metrics:
            known = ", ".join(sorted(metrics)[:8]) or "none"
            text = f"the result of {point_id} has no metric '{settings.metric}'; it has {known}"
            return Outcome("failed", None, text)
        values.append(float(metrics[settings.metric]))
    value = ACROSS[settings.across](values)
    if not math.isfinite(value):
        return Outcome("failed", None, f"{settings.metric} is {value}")
    return Outcome("done", value)


def verdict_outcome(
    trial: Trial, states: Mapping[str, PointState], sweep: SweepFolder, rule: VerdictConfig
) -> Outcome | None:
    """The verdict on a training run; None while it is under way.

    A run that ended without a result is censored if it was evaluated at all, else failed:
    neither says that it was stable.
    """
    (point_id,) = trial.points
    state = states.get(point_id)
    end = _ended(state)
    if state is None or not end:
        return None
    folder = sweep.point(point_id).followed()
    try:
        steps, values = read_events(folder).series(rule.metric)
    except Damaged as error:
        return Outcome("failed", None, f"{state.point.stage} {state.point.short()}: {error}")
    found = judge(steps, values, rule, finished=end == "done")
    last = values[-1] if values and math.isfinite(values[-1]) else None
    if end == "done":
        return Outcome(found.kind, last, found.evidence)
    if found.kind == "waiting":
        return Outcome("failed", None, _why(state))
    return Outcome("censored", last, f"{_why(state)}. {found.evidence}")


def _ended(state: PointState | None) -> Ended:
    if state is None or state.state not in BLOCKING | {"done"}:
        return ""
    return "done" if state.state == "done" else "blocked"


def _why(state: PointState) -> str:
    point = state.point
    return f"{point.stage} {point.short()} ({point.id}) {state.state}: {state.reason}"
