"""Which measured schedule reaches the threshold at the least cost, and how that compares to dense.

Cost and speed are modelled (see `expense`); only the seconds of rollout were timed, on the machine
that the sweep ran on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from sparrow_analysis.pareto import Unit, cost_unit
from sparrow_analysis.threshold import Threshold


@dataclass(frozen=True)
class Cheapest:
    """A measured schedule.

    Attributes:
        names: all names of the schedule. p05: as measured again.
        cost, dense_cost: modelled, a token, in `unit`, over the lengths that it was measured at.
        speedup: modelled seconds of dense decode steps over its own, on the profile `hardware`;
            NaN where the model's shape is not known.
        runs, collapsed: decided runs under it.
        rollout_s, dense_rollout_s: timed seconds of rollout a training step; NaN if unknown.
    """

    page_size: int
    names: str
    p05: float
    unit: Unit
    cost: float
    dense_cost: float
    speedup: float
    hardware: str
    runs: int
    collapsed: int
    rollout_s: float
    dense_rollout_s: float

    @property
    def share(self) -> float:
        """Cost relative to dense."""
        return self.cost / self.dense_cost if self.dense_cost > 0 else math.nan

    def to_json(self) -> dict[str, object]:
        """With `share`; numbers that are not finite are null.

        What was timed is left out: the same runs on another machine are the same answer.
        """
        plain = {**vars(self), "share": self.share}
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in plain.items()
            if k not in ("rollout_s", "dense_rollout_s")
        }


@dataclass(frozen=True)
class Choice:
    """The cheapest schedules of a part of the runs: a model, or a setting with its own threshold.

    `reaching` has at least p5 `least`, the threshold; `safe` at least `high`, the upper end of its
    interval (infinite: the levels tried leave it open). None: no measured schedule does.
    """

    part: str
    least: float
    high: float
    reaching: Cheapest | None
    safe: Cheapest | None


def choices(
    runs: pd.DataFrame, threshold: Threshold, by_setting: Mapping[str, Threshold] | None = None
) -> tuple[Choice, ...]:
    """One choice a model; one a setting if `by_setting` is given. None without a threshold."""
    sparse = runs[~runs["dense"]]
    unit = cost_unit(sparse)
    parts = {"model": dict.fromkeys(sparse["model"], threshold)}
    if by_setting is not None:
        parts = {"group": dict(by_setting)}
    made: list[Choice] = []
    for column, thresholds in parts.items():
        for part, t in thresholds.items():
            if t.kind == "threshold":
                mine = runs[runs["dense"] | runs[column].eq(part)]
                reaching, safe = (_cheapest(mine, least, unit) for least in (t.value, t.high))
                made.append(Choice(str(part), t.value, t.high, reaching, safe))
    return tuple(made)


def _cheapest(runs: pd.DataFrame, least: float, unit: Unit) -> Cheapest | None:
    sparse = runs[~runs["dense"]]
    known = sparse[sparse["p05"].ge(least) & sparse[unit].notna()]
    if known.empty:
        return None
    best = known.sort_values([unit, "p05"], ascending=[True, False], kind="stable").iloc[0]
    same = sparse[sparse["level"].eq(best["level"]) & sparse["group"].eq(best["group"])]
    told = same[same["verdict"].isin(("collapsed", "stable", "stagnated"))]
    controls = runs[runs["dense"] & runs["controls"].eq(best["controls"])]
    return Cheapest(
        page_size=int(best["page_size"]),
        names=str(best["names"]),
        p05=float(best["p05"]),
        unit=unit,
        cost=float(best[unit]),
        dense_cost=float(best[f"dense_{unit}"]),
        speedup=float(best["speedup"]),
        hardware=str(best["hardware"]),
        runs=len(told),
        collapsed=int(told["verdict"].eq("collapsed").sum()),
        rollout_s=seconds_a_step(same, ("time_rollout_s",)),
        dense_rollout_s=seconds_a_step(controls, ("time_rollout_s",)),
    )


def seconds_a_step(runs: pd.DataFrame, parts: tuple[str, ...]) -> float:
    """Timed seconds of these parts a training step, mean over runs; NaN if none is known."""
    steps = runs["last_step"].astype("float64")
    return float((runs[list(parts)].sum(axis=1, min_count=1) / steps.where(steps > 0)).mean())
