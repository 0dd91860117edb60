"""Chance of collapse as a falling function of a predictor, and the likelihood of its threshold.

The model: P(collapse | x) = lapse + (1 - 2 lapse) / (1 + exp((x - threshold) / width)). The
threshold is the x at which half of the runs collapse, were it not for lapses: runs that collapse,
or survive, for reasons of their own. Runs of one *cell* (one schedule of one setting) share their
initial policy and its measured x, so they are not independent: collapses of a cell are
beta-binomial with an intraclass correlation, and an error of measurement in x is integrated out.
Width, lapse and correlation are nuisances on a grid. Nothing is fitted by descent, so perfect
separation, the usual case here, needs no special care.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float64]

WIDTHS = 12
LAPSES = (0.01, 0.05, 0.1, 0.2)
CORRELATIONS = (0.0, 0.3, 0.6, 0.9)
_RULE = np.polynomial.hermite_e.hermegauss(5)
NODES, WEIGHTS = (np.asarray(part, np.float64) for part in _RULE)
"""Gauss-Hermite rule for the error of measurement."""


@dataclass(frozen=True)
class Cells:
    """Outcomes by cell.

    Attributes:
        x: predictor of each cell; `error` is its standard error, 0 where it is not known.
        runs, collapsed: how many runs, and how many of them collapsed.
        group: setting of each cell (model, page size, ...).
    """

    x: Floats
    error: Floats
    runs: npt.NDArray[np.int64]
    collapsed: npt.NDArray[np.int64]
    group: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Cells:
        """The cells at these places."""
        return Cells(
            self.x[index],
            self.error[index],
            self.runs[index],
            self.collapsed[index],
            self.group[index],
        )


@dataclass(frozen=True)
class Grid:
    """The thresholds and the nuisances (flat, one entry a combination) that are tried."""

    threshold: Floats
    width: Floats
    lapse: Floats
    correlation: Floats


def cells_of(runs: pd.DataFrame, statistic: str = "p05") -> Cells:
    """Cells of runs with columns group, level, collapsed (bool) and the statistic, without NaN.

    The standard error comes from the interval of p05 (95 %), where that was measured.
    """
    x = runs.groupby(["group", "level"], sort=False)
    found = x.agg(x=(statistic, "mean"), runs=("collapsed", "size"), collapsed=("collapsed", "sum"))
    error = np.zeros(len(found))
    if statistic == "p05" and {"p05_low", "p05_high"} <= set(runs.columns):
        ends = x[["p05_low", "p05_high"]].mean()
        error = ((ends["p05_high"] - ends["p05_low"]) / 3.92).fillna(0.0).clip(lower=0).to_numpy()
    return Cells(
        x=found["x"].to_numpy(np.float64),
        error=np.asarray(error, np.float64),
        runs=found["runs"].to_numpy(np.int64),
        collapsed=found["collapsed"].to_numpy(np.int64),
        group=np.asarray(found.index.get_level_values("group"), dtype=object),
    )


def grid_for(x: Floats, points: int = 161, inside: int = 9, coarse: bool = False) -> Grid:
    """A grid that covers the levels and a tenth of their span beyond, `inside` points a gap.

    It ends at 0 and 1, where acceptance does.
    A coarse one has an eighth of the nuisances: for tests that compare it with itself.
    """
    levels = np.unique(x)
    span = max(float(levels[-1] - levels[0]), 1e-6)
    low, high = max(levels[0] - 0.1 * span, 0.0), min(levels[-1] + 0.1 * span, 1.0)
    even = np.linspace(min(low, levels[0]), max(high, levels[-1]), points)
    between = [np.linspace(a, b, inside) for a, b in itertools.pairwise(levels)]
    widths = np.geomspace(span / 150, span / 1.5, WIDTHS // 2 if coarse else WIDTHS)
    lapses, correlations = (LAPSES[::2], CORRELATIONS[::2]) if coarse else (LAPSES, CORRELATIONS)
    mesh = np.meshgrid(widths, lapses, correlations, indexing="ij")
    return Grid(np.unique(np.concatenate([even, *between])), *(m.ravel() for m in mesh))


def chance(
    x: npt.ArrayLike, threshold: npt.ArrayLike, width: npt.ArrayLike, lapse: npt.ArrayLike
) -> Floats:
    """P(collapse) of the model; arguments broadcast."""
    z = np.asarray(x, np.float64) - np.asarray(threshold, np.float64)
    z = z / np.asarray(width, np.float64)
    share = np.asarray(lapse, np.float64)
    return np.asarray(share + (1 - 2 * share) / (1 + np.exp(np.clip(z, -700, 700))))


def log_likelihoods(cells: Cells, grid: Grid) -> Floats:
    """Log-likelihood of each cell: [cells, thresholds, nuisances]."""
    out = np.empty((len(cells), len(grid.threshold), len(grid.width)))
    spread = grid.correlation / (1 - grid.correlation)
    for i in range(len(cells)):
        known = cells.error[i] <= 0
        nodes = [0.0] if known else list(NODES)
        weights = [1.0] if known else list(WEIGHTS / WEIGHTS.sum())
        total = np.zeros(out.shape[1:])
        for node, weight in zip(nodes, weights, strict=True):
            p = chance(
                cells.x[i] + node * cells.error[i], grid.threshold[:, None], grid.width, grid.lapse
            )
            total += weight * _beta_binomial(p, spread, int(cells.runs[i]), int(cells.collapsed[i]))
        out[i] = np.log(total)
    return out


def _beta_binomial(p: Floats, spread: Floats, runs: int, collapsed: int) -> Floats:
    """Chance of one order of outcomes, as draws from an urn: `spread` 0 is the plain binomial."""
    value = np.ones(np.broadcast_shapes(p.shape, spread.shape))
    for k in range(collapsed):
        value *= p + k * spread
    for k in range(runs - collapsed):
        value *= 1 - p + k * spread
    for k in range(runs):
        value /= 1 + k * spread
    return value
