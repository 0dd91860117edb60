"""Which statistic of acceptance tells best which runs will collapse?

That it is p5 is a hypothesis. Two measures, neither fitted to the runs that it is scored on:

* AUC: the chance that a collapsed run has a lower value than one that did not collapse. No
  threshold is fitted, and its direction is fixed beforehand.
* Balanced accuracy of a threshold chosen on all settings but one and tried on that one: whether a
  number found at some models and page sizes can be carried to another.

Intervals come from a bootstrap over schedules: seeds of one schedule share their initial policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from sparrow_analysis.frames import STATISTICS
from sparrow_analysis.threshold import MIN_RUNS, decided

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Conclusion = Literal["not_enough", "supported", "refuted", "undecided"]

TABLE = [
    "statistic",
    "auc",
    "auc_low",
    "auc_high",
    "auc_within",
    "transfer",
    "transfer_low",
    "transfer_high",
    "less_than_p05_low",
    "less_than_p05_high",
]


@dataclass(frozen=True)
class Predictors:
    """The comparison.

    Attributes:
        table: one row a statistic, best AUC first. `auc_within` compares runs of the same setting
            only. `transfer` is the balanced accuracy on settings left out; NaN if there is one
            setting. `less_than_p05_*` is the interval of AUC of p05 minus that of this statistic,
            widened for the number of comparisons.
        conclusion: on 'p5 predicts best': `supported` if p05 is ahead of every other statistic
            beyond chance, `refuted` if some statistic is ahead of p05 beyond chance, else
            `undecided`.
        better, tied: statistics ahead of p05, and those that cannot be told from it.
        left_out: settings that `transfer` could leave out.
    """

    conclusion: Conclusion
    table: pd.DataFrame
    better: tuple[str, ...] = ()
    tied: tuple[str, ...] = ()
    runs: int = 0
    collapsed: int = 0
    schedules: int = 0
    left_out: int = 0


def compare_predictors(
    runs: pd.DataFrame,
    statistics: Sequence[str] = STATISTICS,
    resamples: int = 600,
    confidence: float = 0.95,
    seed: int = 0,
) -> Predictors:
    """Compare statistics on the decided sparse runs that have all of them.

    Args:
        runs: as `verdicts` makes them.
        statistics: columns; one without any value is left out.
    """
    names = [n for n in statistics if n in runs and runs[n].notna().any()]
    table = decided(runs, names[0]) if names else runs.iloc[:0].assign(collapsed=False)
    table = table.dropna(subset=names)
    fell = table["collapsed"].to_numpy(bool)
    empty = pd.DataFrame({name: pd.Series(dtype=object) for name in TABLE})
    if len(table) < MIN_RUNS or fell.all() or not fell.any() or "p05" not in names:
        return Predictors("not_enough", empty, runs=len(table), collapsed=int(fell.sum()))
    values = {name: table[name].to_numpy(np.float64) for name in names}
    group = np.asarray(pd.factorize(table["group"])[0], np.int64)
    cell = np.asarray(table.groupby(["group", "level"], sort=False).ngroup(), np.int64)
    draws = _draws(cell, group, resamples, seed)
    # a setting can be left out only if what remains has both outcomes
    folds = [g for g in range(group.max() + 1) if 0 < fell[group != g].sum() < (group != g).sum()]
    drawn = {n: np.asarray([auc(v[i], fell[i]) for i in draws]) for n, v in values.items()}
    moved = {
        n: np.asarray([transfer(v[i], fell[i], group[i], folds) for i in draws[: resamples // 3]])
        for n, v in values.items()
    }
    others = max(len(names) - 1, 1)
    rows: list[dict[str, object]] = []
    for name, v in values.items():
        difference = drawn["p05"] - drawn[name]
        rows.append(
            {
                "statistic": name,
                "auc": auc(v, fell),
                **_ends("auc", drawn[name], confidence),
                "auc_within": auc_within(v, fell, group),
                "transfer": transfer(v, fell, group, folds),
                **_ends("transfer", moved[name], confidence),
                **_ends("less_than_p05", difference, 1 - (1 - confidence) / others),
            }
        )
    made = pd.DataFrame(rows, columns=TABLE).sort_values("auc", ascending=False, kind="stable")
    rest = made[made["statistic"] != "p05"]
    better = tuple(rest.loc[rest["less_than_p05_high"] < 0, "statistic"])
    worse = tuple(rest.loc[rest["less_than_p05_low"] > 0, "statistic"])
    tied = tuple(n for n in rest["statistic"] if n not in better and n not in worse)
    conclusion: Conclusion = "refuted" if better else "undecided" if tied else "supported"
    return Predictors(
        conclusion,
        made.reset_index(drop=True),
        better,
        tied,
        runs=len(table),
        collapsed=int(fell.sum()),
        schedules=len(np.unique(cell)),
        left_out=len(folds) if len(np.unique(group)) > 1 else 0,
    )


def auc(values: Floats, collapsed: Bools) -> float:
    """Chance that a collapsed run has the lower value; ties count half. NaN without both kinds."""
    k, n = int(collapsed.sum()), len(collapsed)
    if k in (0, n):
        return math.nan
    ranks = rankdata(-values)
    return float((ranks[collapsed].sum() - k * (k + 1) / 2) / (k * (n - k)))


def auc_within(values: Floats, collapsed: Bools, group: npt.NDArray[np.int64]) -> float:
    """AUC over pairs of runs of one setting; NaN if no setting has both kinds."""
    parts = [(auc(values[m], collapsed[m]), _pairs(collapsed[m])) for m in _members(group)]
    weights = [pairs for _, pairs in parts]
    if not sum(weights):
        return math.nan
    return float(sum(a * w for a, w in parts if w) / sum(weights))


def best_cut(values: Floats, collapsed: Bools) -> float:
    """The cut below which to call a run collapsed, by the best balanced accuracy.

    In the middle between two values; of equally good cuts the middle one.
    """
    levels = np.unique(values)
    cuts = np.concatenate([[-math.inf], (levels[:-1] + levels[1:]) / 2, [math.inf]])
    below = values[None, :] < cuts[:, None]
    hit = (below & collapsed).sum(axis=1) / max(int(collapsed.sum()), 1)
    passed = (~below & ~collapsed).sum(axis=1) / max(int((~collapsed).sum()), 1)
    good = np.flatnonzero(hit + passed >= (hit + passed).max() - 1e-12)
    return float(cuts[good[len(good) // 2]])


def transfer(
    values: Floats, collapsed: Bools, group: npt.NDArray[np.int64], folds: Sequence[int]
) -> float:
    """Balanced accuracy over all runs, each called by a cut chosen without its setting.

    Only the settings in `folds` are called. NaN with one setting, or if the called runs are all
    of one kind.
    """
    if len(np.unique(group)) < 2 or not folds:
        return math.nan
    called = np.zeros(len(values), bool)
    asked = np.zeros(len(values), bool)
    for fold in folds:
        out = group == fold
        if out.any() and 0 < collapsed[~out].sum() < (~out).sum():
            called[out] = values[out] < best_cut(values[~out], collapsed[~out])
            asked |= out
    bad, good = asked & collapsed, asked & ~collapsed
    if not bad.any() or not good.any():
        return math.nan
    return float((called[bad].mean() + (~called[good]).mean()) / 2)


def _members(group: npt.NDArray[np.int64]) -> list[Bools]:
    return [group == g for g in np.unique(group)]


def _pairs(collapsed: Bools) -> int:
    return int(collapsed.sum()) * int((~collapsed).sum())


def _draws(
    cell: npt.NDArray[np.int64], group: npt.NDArray[np.int64], resamples: int, seed: int
) -> list[npt.NDArray[np.int64]]:
    """Rows of each resample: schedules drawn with replacement within their setting."""
    rng = np.random.default_rng(seed)
    members = {c: np.flatnonzero(cell == c) for c in np.unique(cell)}
    by_group = [np.unique(cell[m]) for m in _members(group)]
    return [
        np.concatenate([members[c] for cells in by_group for c in rng.choice(cells, len(cells))])
        for _ in range(resamples)
    ]


def _ends(name: str, drawn: Floats, confidence: float) -> dict[str, float]:
    """Percentile interval; NaN if more than half of the resamples said nothing."""
    said = drawn[np.isfinite(drawn)]
    if len(said) <= len(drawn) / 2:
        return {f"{name}_low": math.nan, f"{name}_high": math.nan}
    low, high = np.quantile(said, [(1 - confidence) / 2, (1 + confidence) / 2])
    return {f"{name}_low": float(low), f"{name}_high": float(high)}
