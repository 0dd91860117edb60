"""The front of cost against quality: which page size and budget to take."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from sparrow_analysis.verdicts import DECIDED

Unit = Literal["eflops", "reads"]

UNITS: dict[Unit, str] = {
    "eflops": "eFLOPs a token",
    "reads": "KV tokens read a token, landmarks counted",
}


def cost_unit(*frames: pd.DataFrame) -> Unit:
    """eFLOPs if every row that has a cost has them, else reads: units are never mixed."""
    asked = [f.loc[f["reads"].notna(), "eflops"] for f in frames if "eflops" in f and len(f)]
    known = pd.concat(asked) if asked else pd.Series(dtype="float64")
    return "eflops" if len(known) and bool(known.notna().all()) else "reads"


def on_front(cost: npt.ArrayLike, quality: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Which points are not beaten: none is as cheap and as good, and better in one of the two.

    Low cost and high quality are better. A point with NaN is never on the front; of equal points
    all are.
    """
    c, q = np.asarray(cost, np.float64), np.asarray(quality, np.float64)
    front = np.isfinite(c) & np.isfinite(q)
    for i in np.flatnonzero(front):
        beaten = (c <= c[i]) & (q >= q[i]) & ((c < c[i]) | (q > q[i]))
        front[i] = not beaten.any()
    return front


def hypervolume(
    cost: npt.ArrayLike,
    quality: npt.ArrayLike,
    worst_cost: float,
    worst_quality: float,
    best_quality: float = 1.0,
) -> float:
    """Share of the box between the worst point and (cost 0, `best_quality`) that is dominated.

    Points outside the box count for the part inside it. 0 without points; NaN if the box is empty.
    """
    if not (worst_cost > 0 and best_quality > worst_quality):
        return math.nan
    c, q = np.asarray(cost, np.float64), np.asarray(quality, np.float64)
    keep = on_front(c, q) & (c < worst_cost) & (q > worst_quality)
    area, above = 0.0, worst_quality
    order = np.argsort(c[keep])
    points = list(
        zip(np.maximum(c[keep][order], 0.0), np.minimum(q[keep][order], best_quality), strict=True)
    )
    for at, value in points:
        if value > above:
            area += (worst_cost - at) * (value - above)
            above = value
    return float(area / (worst_cost * (best_quality - worst_quality)))


def budget_front(pooled: pd.DataFrame, quality: str = "p05") -> pd.DataFrame:
    """Fixed budgets of the calibration on their own trajectories: cost, quality, on_front.

    The front is that of a model, over all its page sizes. Columns: model, page_size, budget, cost,
    quality, low, high, unit, on_front.
    """
    own = pooled[pooled["trajectory"].eq("own") & pooled["reads"].notna()]
    if own.empty:  # a calibration may have been asked for dense trajectories only
        own = pooled[pooled["reads"].notna()]
    unit = cost_unit(own)
    made = own[["model", "page_size", "budget"]].assign(
        cost=own[unit],
        quality=own[quality],
        low=own["p05_low"] if quality == "p05" else math.nan,
        high=own["p05_high"] if quality == "p05" else math.nan,
        unit=unit,
    )
    return _with_front(made)


def run_front(runs: pd.DataFrame) -> pd.DataFrame:
    """Schedules of finished runs: cost against the evaluation at the end, mean over seeds.

    Columns: model, page_size, schedule, group, dense, p05, cost, quality, low, high (range over
    seeds), runs, collapsed, unit, on_front. Quality is the final evaluation on prompts that
    training never looked at, where there is one, else the last one of training.
    """
    done = runs[runs["verdict"].isin(DECIDED) & runs["reads"].notna()]
    unit = cost_unit(done)
    done = done.assign(
        quality=done["final_reward"].fillna(done["final"]),
        collapsed=done["verdict"].eq("collapsed"),
    )
    found = done.groupby(["group", "level"], sort=False, dropna=False)
    made = found.agg(
        model=("model", "first"),
        page_size=("page_size", "first"),
        schedule=("schedule", "first"),
        dense=("dense", "first"),
        p05=("p05", "mean"),
        cost=(unit, "mean"),
        low=("quality", "min"),
        high=("quality", "max"),
        quality=("quality", "mean"),
        runs=("run", "size"),
        collapsed=("collapsed", "sum"),
    )
    return _with_front(made.reset_index().drop(columns="level").assign(unit=unit))


def volumes(front: pd.DataFrame) -> pd.DataFrame:
    """Hypervolume of each page size of each model, in one box a model: model, page_size, volume.

    The box reaches from the model's dearest and worst point to cost 0 and quality 1; rows without
    a page size (dense) only widen it.
    """
    rows: list[dict[str, object]] = []
    for model, mine in front.groupby("model", sort=False):
        worst_cost, worst_quality = float(mine["cost"].max()), float(mine["quality"].min())
        for size, part in mine.dropna(subset=["page_size"]).groupby("page_size"):
            volume = hypervolume(part["cost"], part["quality"], worst_cost, worst_quality)
            rows.append({"model": model, "page_size": size, "volume": volume})
    return pd.DataFrame(rows, columns=["model", "page_size", "volume"])


def _with_front(made: pd.DataFrame) -> pd.DataFrame:
    flags = pd.Series(False, index=made.index)
    for _, mine in made.groupby("model", sort=False):
        flags[mine.index] = on_front(mine["cost"], mine["quality"])
    return made.assign(on_front=flags.astype(bool)).reset_index(drop=True)
