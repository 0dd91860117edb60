"""Percentile curves against length, ready to draw: one row a point, in order."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sparrow_analysis.frames import records


def percentile_curves(
    curves: pd.DataFrame, statistic: str = "p05", trajectory: str = "own"
) -> pd.DataFrame:
    """The curve of each budget: model, page_size, budget, length, value, low, high, prompts, reads.

    `length` is the middle of the bin. Only p05 has an interval. Budgets that hold the whole
    context are dense in effect and stay in.
    """
    mine = curves[curves["trajectory"].eq(trajectory)]
    middle = mine["bin_start"].astype("float64") + (mine["bin_width"].astype("float64") - 1) / 2
    made = mine[["model", "page_size", "budget", "prompts", "reads"]].assign(
        length=middle,
        value=mine[statistic],
        low=mine["p05_low"] if statistic == "p05" else np.nan,
        high=mine["p05_high"] if statistic == "p05" else np.nan,
    )
    order = ["model", "page_size", "budget", "length"]
    return made.sort_values(order, na_position="last").reset_index(drop=True)


def staircase(steps: pd.DataFrame, until: float) -> pd.DataFrame:
    """Schedules as lines to draw: schedule_id, name, model, page_size, length, budget.

    Two rows a step, at its first length and where the next one takes over (`until` for the last);
    a step that begins beyond `until` is left out.
    """
    rows: list[dict[str, object]] = []
    for _, mine in steps.groupby("schedule_id", sort=False):
        ordered = mine.sort_values("start")
        starts = [float(s) for s in ordered["start"]]
        ends = [*starts[1:], until]
        for row, start, end in zip(records(ordered), starts, ends, strict=True):
            if start < until:
                kept = {k: row[k] for k in ("schedule_id", "name", "model", "page_size", "budget")}
                rows += [{**kept, "length": start}, {**kept, "length": min(end, until)}]
    columns = ["schedule_id", "name", "model", "page_size", "length", "budget"]
    return pd.DataFrame(rows, columns=columns)


def same_schedules(schedules: pd.DataFrame) -> pd.DataFrame:
    """One row a distinct schedule: the first of its rows, with `names`, all its names joined."""
    if schedules.empty:
        return schedules.assign(names=pd.Series(dtype="object"))
    by_level = schedules.groupby(["model", "level"], sort=False)
    names = by_level["name"].agg(lambda x: " = ".join(dict.fromkeys(x)))
    first = by_level.first().assign(names=names)
    return first.reset_index()


def slope_with_length(curves: pd.DataFrame, statistic: str = "p05") -> pd.DataFrame:
    """Change of a statistic from the first to the last bin: model, page_size, budget, change.

    Weighted straight line over the bins of one budget, times the span of lengths; NaN with one
    bin. Own trajectories: late bins hold only what grew that long.
    """
    rows: list[dict[str, object]] = []
    points = percentile_curves(curves, statistic)
    for (model, size, budget), mine in points.groupby(
        ["model", "page_size", "budget"], sort=False, dropna=False
    ):
        known = mine.dropna(subset=["value"])
        change = float("nan")
        if len(known) > 1:
            weights = np.sqrt(known["prompts"].to_numpy(np.float64))
            slope = np.polyfit(known["length"], known["value"], 1, w=weights)[0]
            change = float(slope * (known["length"].max() - known["length"].min()))
        rows.append({"model": model, "page_size": size, "budget": budget, "change": change})
    return pd.DataFrame(rows, columns=["model", "page_size", "budget", "change"])
