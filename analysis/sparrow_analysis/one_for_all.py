"""Does one threshold serve all models and page sizes? Likelihood ratio, permutation null."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sparrow_analysis.likelihood import cells_of, grid_for, log_likelihoods
from sparrow_analysis.threshold import decided

MIN_CELLS = 3
"""Schedules that a setting needs to have a say; one with fewer is left out."""


@dataclass(frozen=True)
class OneForAll:
    """Result of the test for one way to part the runs.

    Attributes:
        by: column by which runs are parted: group, model or page_size.
        parts: how many parts had at least MIN_CELLS schedules; with fewer than two, p is NaN.
        gain: log-likelihood that a threshold for each part gains over a common one.
        p: share of label permutations with as large a gain.
        attainable: the least p there could have been.
    """

    by: str
    parts: int
    gain: float
    p: float
    attainable: float


def one_for_all(
    runs: pd.DataFrame,
    by: str = "group",
    statistic: str = "p05",
    shuffles: int = 499,
    seed: int = 0,
) -> OneForAll:
    """Test whether parts of the runs have thresholds of their own.

    Width, lapse and correlation are common to all parts in both models. Whole schedules are
    relabelled. Relabelling also mixes the levels that parts were measured at, which the
    likelihood ratio, being given the levels, is not sensitive to.
    """
    table = decided(runs, statistic)
    labels = table.groupby(["group", "level"], sort=False)[by].first() if len(table) else None
    if labels is None:
        return OneForAll(by, 0, math.nan, math.nan, math.nan)
    cells = cells_of(table, statistic)
    part = pd.factorize(labels)[0]
    sizes = np.bincount(part[part >= 0], minlength=1)
    keep = np.flatnonzero((part >= 0) & (sizes[part] >= MIN_CELLS))
    part = pd.factorize(part[keep])[0]
    parts = int(part.max()) + 1 if len(part) else 0
    outcomes = cells.collapsed[keep]
    if parts < 2 or outcomes.sum() in (0, cells.runs[keep].sum()):
        return OneForAll(by, parts, math.nan, math.nan, math.nan)
    cells = cells.take(keep)
    cube = log_likelihoods(cells, grid_for(cells.x, points=41, inside=3, coarse=True))
    flat = cube.reshape(len(cells), -1)
    common = float(flat.sum(axis=0).max())

    def gain(labels: np.ndarray) -> float:
        members = np.eye(parts)[:, labels]
        by_part = (members @ flat).reshape(parts, *cube.shape[1:])
        return float(by_part.max(axis=1).sum(axis=0).max()) - common

    rng = np.random.default_rng(seed)
    observed = gain(part)
    drawn = np.asarray([gain(rng.permutation(part)) for _ in range(shuffles)])
    as_large = int(np.sum(drawn >= observed - 1e-3))
    counts = np.bincount(part)
    log_orders = math.lgamma(len(part) + 1) - sum(math.lgamma(n + 1) for n in counts)
    return OneForAll(
        by,
        parts,
        observed,
        (as_large + 1) / (shuffles + 1),
        max(math.exp(-log_orders), 1 / (shuffles + 1)),
    )
