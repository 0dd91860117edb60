"""Is collapse more frequent where the predictor is low? A permutation test within settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from sparrow_analysis.likelihood import Cells


@dataclass(frozen=True)
class Monotone:
    """Result of the test.

    Attributes:
        p: one-sided p-value; NaN if no setting has both outcomes at two or more levels.
        unit: what was shuffled. Runs of one schedule share their initial policy, so whole
            schedules are shuffled where there are enough of them to reach `alpha`, else runs.
        p_runs: p-value with single runs shuffled, as if seeds were independent.
        attainable: the least p that these outcomes could have given.
        settings: settings with both outcomes at two or more levels: only they tell anything.
    """

    p: float
    unit: Literal["schedule", "run", "none"]
    p_runs: float
    attainable: float
    settings: int


def monotone_test(
    cells: Cells, alpha: float = 0.05, shuffles: int = 4999, seed: int = 0
) -> Monotone:
    """Test against 'collapse has nothing to do with x', one-sided: collapse at low x.

    The statistic is the rank of x among the runs of the same setting, summed over collapsed runs.
    Outcomes are shuffled within a setting, so that a page size or a model at which everything
    collapses cannot pass for an effect of x.
    """
    strata = [np.flatnonzero(cells.group == g) for g in dict.fromkeys(cells.group)]
    strata = [i for i in strata if _tells(cells, i)]
    if not strata:
        return Monotone(math.nan, "none", math.nan, math.nan, 0)
    by_schedule = _attainable_by_schedule(cells, strata)
    by_run = _attainable_by_run(cells, strata)
    p_runs = _p_value(cells, strata, False, shuffles, seed)
    if by_schedule > alpha:
        return Monotone(p_runs, "run", p_runs, by_run, len(strata))
    p = _p_value(cells, strata, True, shuffles, seed)
    return Monotone(p, "schedule", p_runs, by_schedule, len(strata))


def _p_value(
    cells: Cells, strata: list[npt.NDArray[np.int64]], whole: bool, shuffles: int, seed: int
) -> float:
    """Share of shuffles with collapse at as low ranks; whole schedules or single runs."""
    rng = np.random.default_rng(seed)
    observed, drawn = 0.0, np.zeros(shuffles)
    for index in strata:
        runs, collapsed = cells.runs[index], cells.collapsed[index]
        ranks = rankdata(np.repeat(cells.x[index], runs))
        outcome = np.concatenate(
            [np.repeat([1.0, 0.0], [k, n - k]) for n, k in zip(runs, collapsed, strict=True)]
        )
        if whole:
            outcome = collapsed / runs
            ranks = np.asarray([r.mean() for r in np.split(ranks, np.cumsum(runs)[:-1])])
        observed += float(outcome @ ranks)
        drawn += rng.permuted(np.tile(outcome, (shuffles, 1)), axis=1) @ ranks
    return (int(np.sum(drawn <= observed + 1e-9)) + 1) / (shuffles + 1)


def _tells(cells: Cells, index: npt.NDArray[np.int64]) -> bool:
    runs, collapsed = cells.runs[index].sum(), cells.collapsed[index].sum()
    return len(np.unique(cells.x[index])) > 1 and 0 < collapsed < runs


def _attainable_by_schedule(cells: Cells, strata: list[npt.NDArray[np.int64]]) -> float:
    """One over the number of different orders of the schedules' outcomes."""
    log_orders = 0.0
    for index in strata:
        shares = pd.Series(cells.collapsed[index] / cells.runs[index]).value_counts()
        log_orders += math.lgamma(len(index) + 1) - sum(math.lgamma(n + 1) for n in shares)
    return math.exp(-log_orders)


def _attainable_by_run(cells: Cells, strata: list[npt.NDArray[np.int64]]) -> float:
    log_orders = 0.0
    for index in strata:
        n, k = int(cells.runs[index].sum()), int(cells.collapsed[index].sum())
        log_orders += math.log(math.comb(n, k))
    return math.exp(-log_orders)
