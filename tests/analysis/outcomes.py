"""Frames of judged runs with a known truth, for tests that need many of them and no files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from tests.analysis.simulated import Level, World


def outcomes(world: World, seed: int = 0) -> pd.DataFrame:
    """What `verdicts` would make of the world's runs: only the columns that statistics read."""
    rng = np.random.default_rng(seed)
    rows = []
    for level in world.levels:
        for run_seed in range(world.seeds):
            collapsed = bool(rng.random() < world.collapse(level))
            rows.append(_row(level, run_seed, collapsed, dense=False))
    if world.dense:
        for model in dict.fromkeys(level.model for level in world.levels):
            for run_seed in range(world.seeds):
                collapsed = bool(rng.random() < world.dense_collapse)
                dense = Level(model, 16, "dense", 0.9999, 0.99999)
                rows.append(_row(dense, run_seed, collapsed, dense=True))
    return pd.DataFrame(rows)


def levels(
    settings: Sequence[tuple[str, int]],
    count: int,
    rng: np.random.Generator,
    low: float = 0.6,
    high: float = 0.98,
    mean: Callable[[float, int], float] = lambda p05, page: 1 - 0.2 * (1 - p05),
) -> list[Level]:
    """Random levels of p5 for each (model, page size)."""
    return [
        Level(model, page, round(float(x), 4), float(x), mean(float(x), page))
        for model, page in settings
        for x in np.sort(rng.uniform(low, high, count))
    ]


def _row(level: Level, seed: int, collapsed: bool, dense: bool) -> dict[str, object]:
    p05 = level.p05
    return {
        "run": f"{level.model}-{level.page_size}-{level.tau}-{seed}",
        "model": level.model,
        "page_size": None if dense else level.page_size,
        "group": level.model if dense else f"{level.model} · page {level.page_size}",
        "controls": level.model,
        "level": f"{level.model}-{level.page_size}-{level.tau}",
        "dense": dense,
        "verdict": "collapsed" if collapsed else "stable",
        "down": collapsed,
        "lowest": math.nan,
        "came_back": False,
        "final": 0.1 if collapsed else 0.95,
        "p01": max(0.0, p05 - 1.5 * (1 - p05)),
        "p05": p05,
        "p10": 1 - 0.55 * (1 - p05),
        "p50": 1 - 0.002 * (1 - p05),
        "mean": level.mean,
    }
