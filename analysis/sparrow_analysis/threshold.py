"""The collapse threshold: the predictor at which half of the runs collapse, with an interval.

The interval is that of the profile likelihood (see `likelihood`). In simulations of 6 and 12
schedules with 2 or 3 seeds each, 95 % intervals held the truth in 93 to 100 % of data sets, and in
87 % when every schedule has a threshold of its own (spread 0.04) around the common one.

Dense runs are controls and no levels: they say whether collapse has to do with sparsity at all,
but counting them would let any statistic look good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy.stats import f as f_distribution

from sparrow_analysis.likelihood import Cells, cells_of, chance, grid_for, log_likelihoods
from sparrow_analysis.monotone import monotone_test
from sparrow_analysis.verdicts import DECIDED

Kind = Literal["threshold", "none", "not_enough"]
Reason = Literal[
    "",
    "no_runs",
    "too_few",
    "few_schedules",
    "one_level",
    "all_stable",
    "all_collapsed",
    "control_collapsed",
    "confounded",
    "no_relation",
    "not_located",
]

MIN_RUNS = 6
"""Fewer decided runs than these never make a threshold, whatever they look like."""

GAP = 0.25
"""Share of the interval that a gap between levels has to take up to be worth a word."""


@dataclass(frozen=True)
class Threshold:
    """What the runs say about a threshold in one statistic.

    Attributes:
        kind: `threshold`; `none` (there are runs enough, and no threshold shows); `not_enough`.
        reason: why not, empty for a threshold.
        value, low, high: the threshold and its interval, NaN if there is none. `low` is -inf or
            `high` inf where the levels tried do not bound it.
        gap_low, gap_high: the levels next below and next above `value`, where they lie so far
            apart that the data hardly say where between them it is; NaN otherwise.
        runs, collapsed, stagnated: decided sparse runs; stagnated ones count as not collapsed.
        dipped, came_back: runs that did not collapse, but had an evaluation below the rule's line
            in between; and those of them that the rule would have called collapsed then.
        censored, censored_down: sparse runs kept out because they ended early, and how many of
            them were down at the time. `undecided`: other sparse runs without a verdict or
            without the statistic.
        levels, settings: distinct levels (schedules) and settings (model, page size, ...).
        controls, controls_collapsed: decided dense runs.
        lowest, highest: range of the statistic over decided runs; NaN without any.
        highest_collapsed, lowest_stable: the observed edge; NaN if there is none.
        p: permutation test of 'collapse is more frequent where the statistic is low', `unit` what
            it shuffled, `p_runs` the p with single runs shuffled, `attainable` the least p.
        curve: threshold model at its best fit: x and chance of collapse, for a figure.
    """

    statistic: str
    kind: Kind
    reason: Reason = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    gap_low: float = math.nan
    gap_high: float = math.nan
    confidence: float = 0.95
    runs: int = 0
    collapsed: int = 0
    stagnated: int = 0
    dipped: int = 0
    came_back: int = 0
    censored: int = 0
    censored_down: int = 0
    undecided: int = 0
    levels: int = 0
    settings: int = 0
    controls: int = 0
    controls_collapsed: int = 0
    lowest: float = math.nan
    highest: float = math.nan
    highest_collapsed: float = math.nan
    lowest_stable: float = math.nan
    p: float = math.nan
    unit: str = "none"
    p_runs: float = math.nan
    attainable: float = math.nan
    curve: pd.DataFrame = field(default_factory=lambda: pd.DataFrame({"x": [], "chance": []}))

    def to_json(self) -> dict[str, object]:
        """Without the curve; numbers that are not finite are null."""
        plain = {k: v for k, v in vars(self).items() if k != "curve"}
        return {
            k: None if isinstance(v, float) and not math.isfinite(v) else v
            for k, v in plain.items()
        }


def decided(runs: pd.DataFrame, statistic: str = "p05") -> pd.DataFrame:
    """Sparse runs with a verdict and the statistic; adds `collapsed` (bool)."""
    keep = runs["verdict"].isin(DECIDED) & ~runs["dense"] & runs[statistic].notna()
    return runs[keep].assign(collapsed=runs.loc[keep, "verdict"].eq("collapsed"))


def find_threshold(
    runs: pd.DataFrame, statistic: str = "p05", confidence: float = 0.95, seed: int = 0
) -> Threshold:
    """Look for a threshold below which runs collapse.

    Args:
        runs: as `verdicts` makes them. One row a run: aliases must not be counted twice.
        statistic: column of `runs`; low values must mean a worse match.
    """
    table = decided(runs, statistic)
    counts = _counts(runs, table, statistic)
    alpha = 1 - confidence
    reason = _before_any_test(table, counts)
    if reason:
        none = reason in ("all_stable", "all_collapsed", "control_collapsed")
        return Threshold(statistic, "none" if none else "not_enough", reason, **counts)
    cells = cells_of(table, statistic)
    test = monotone_test(cells, alpha, seed=seed)
    counts |= {k: getattr(test, k) for k in ("p", "unit", "p_runs", "attainable")}
    if test.settings == 0:
        return Threshold(statistic, "not_enough", "confounded", **counts)
    if test.p > alpha:
        if test.attainable > alpha:
            return Threshold(statistic, "not_enough", "too_few", **counts)
        if test.p_runs <= alpha:
            return Threshold(statistic, "not_enough", "few_schedules", **counts)
        return Threshold(statistic, "none", "no_relation", **counts)
    value, low, high, curve = locate(cells, confidence)
    if math.isinf(low) and math.isinf(high):
        return Threshold(statistic, "not_enough", "not_located", **counts)
    below, above = _gap(table[statistic], value, low, high)
    return Threshold(
        statistic,
        "threshold",
        value=value,
        low=low,
        high=high,
        gap_low=below,
        gap_high=above,
        confidence=confidence,
        curve=curve,
        **counts,
    )


def locate(cells: Cells, confidence: float = 0.95) -> tuple[float, float, float, pd.DataFrame]:
    """Threshold, ends of its profile-likelihood interval, and the best curve (x, chance).

    Where several thresholds fit equally well (a gap between levels), the middle of them. An end
    that the levels do not bound is infinite.
    """
    grid = grid_for(cells.x)
    likelihood = log_likelihoods(cells, grid).sum(axis=0)
    profile = likelihood.max(axis=1)
    best = float(profile.max())
    # F instead of its limit, chi-squared, for the same reason as t instead of the normal
    cut = best - f_distribution.ppf(confidence, 1, max(int(cells.runs.sum()) - 1, 1)) / 2
    inside = np.flatnonzero(profile >= cut)
    flat = np.flatnonzero(profile >= best - 1e-3)
    last = len(grid.threshold) - 1
    low = -math.inf if inside[0] == 0 else float(grid.threshold[inside[0] - 1])
    high = math.inf if inside[-1] == last else float(grid.threshold[inside[-1] + 1])
    value = float(grid.threshold[flat[0]] + grid.threshold[flat[-1]]) / 2
    nuisance = int(likelihood[flat[len(flat) // 2]].argmax())
    x = np.linspace(grid.threshold[0], grid.threshold[-1], 200)
    p = chance(x, value, grid.width[nuisance], grid.lapse[nuisance])
    return value, low, high, pd.DataFrame({"x": x, "chance": p})


def _gap(x: pd.Series, value: float, low: float, high: float) -> tuple[float, float]:
    """The runs next below and above `value` if they leave a wide gap, else NaN twice."""
    below, above = float(x[x <= value].max()), float(x[x > value].min())
    left, right = max(low, float(x.min())), min(high, float(x.max()))
    wide = above - below >= GAP * (right - left)  # False with NaN: beyond the last run is no gap
    return (below, above) if wide else (math.nan, math.nan)


def _counts(runs: pd.DataFrame, table: pd.DataFrame, statistic: str) -> dict[str, Any]:
    sparse = runs[~runs["dense"]]
    controls = runs[runs["dense"] & runs["verdict"].isin(DECIDED)]
    censored = sparse[sparse["verdict"].eq("censored")]
    x, fell = table[statistic], table["collapsed"]
    came_back = table["came_back"] & ~fell
    return {
        "runs": len(table),
        "collapsed": int(fell.sum()),
        "stagnated": int(table["verdict"].eq("stagnated").sum()),
        "dipped": int((came_back | (table["lowest"].notna() & ~fell)).sum()),
        "came_back": int(came_back.sum()),
        "censored": len(censored),
        "censored_down": int(censored["down"].sum()),
        "undecided": len(sparse) - len(table) - len(censored),
        "levels": len(table[["group", "level"]].drop_duplicates()),
        "settings": int(table["group"].nunique()),
        "controls": len(controls),
        "controls_collapsed": int(controls["verdict"].eq("collapsed").sum()),
        "lowest": float(x.min()),
        "highest": float(x.max()),
        "highest_collapsed": float(x[fell].max()),
        "lowest_stable": float(x[~fell].min()),
    }


def _before_any_test(table: pd.DataFrame, counts: dict[str, Any]) -> Reason:
    """Why no test is needed, or an empty string."""
    if table.empty:
        return "no_runs"
    if len(table) < MIN_RUNS:
        return "too_few"
    if 2 * counts["controls_collapsed"] > counts["controls"]:
        return "control_collapsed"
    if not table["collapsed"].any():
        return "all_stable"
    if table["collapsed"].all():
        return "all_collapsed"
    if counts["levels"] == 1:
        return "one_level"
    return ""
