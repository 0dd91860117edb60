"""The acceptance curve: a percentile of acceptance by budget and length bin, with intervals.

Counts come in as int64 [prompts, length bins, acceptance bins] for one budget, with the
acceptance bins of `sparrow_lab.acceptance.histogram.EDGES`. Prompts are the unit of the
bootstrap: tokens of one trajectory are far from independent. Numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparrow_lab.acceptance.histogram import EDGES
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.schedule import DENSE

Trajectory = Literal["own", "dense"]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PERCENTILES = {"p01": 0.01, "p05": 0.05, "p10": 0.10, "p50": 0.50}
_MIDDLES: Floats = (EDGES[:-1] + EDGES[1:]) / 2


def quantiles(counts: npt.NDArray[Any], q: float) -> Floats:
    """The q-quantile (0..1) along the last axis of counts over `EDGES`; NaN where all are zero.

    The same order statistic, and the same place inside its bin, as
    `acceptance.histogram.percentile_of_counts`, for many rows at once.
    """
    total = counts.sum(axis=-1)
    cumulative = np.cumsum(counts, axis=-1)
    rank = np.maximum(q * total, np.finfo(float).tiny)
    index = np.argmax(cumulative >= rank[..., None], axis=-1)
    inside = np.take_along_axis(counts, index[..., None], axis=-1)[..., 0]
    before = np.take_along_axis(cumulative, index[..., None], axis=-1)[..., 0] - inside
    share = (rank - before) / np.where(total > 0, inside, 1)
    value = EDGES[index] + share * (EDGES[index + 1] - EDGES[index])
    return np.where(total > 0, value, np.nan)


def bootstrap_quantiles(
    counts: Ints, q: float, resamples: int, confidence: float, seed: int
) -> tuple[Floats, Floats]:
    """Ends of the percentile-bootstrap interval over prompts, by length bin: ([bins], [bins]).

    Prompts are drawn with replacement; the draws depend on `seed` and the number of prompts
    only, so curves over the same prompts are resampled together. A draw without a token in a bin
    says nothing about that bin and is left out. NaN where a bin has no tokens, or if
    `resamples` is 0.
    """
    prompts, bins, _ = counts.shape
    low, high = np.full(bins, np.nan), np.full(bins, np.nan)
    if resamples == 0 or prompts == 0:
        return low, high
    draws = np.random.default_rng(seed).multinomial(
        prompts, np.full(prompts, 1 / prompts), size=resamples
    )
    ends = [(1 - confidence) / 2, (1 + confidence) / 2]
    for i in range(bins):
        reached = counts[:, i].any(axis=1)
        if not reached.any():
            continue
        # float64 goes through BLAS and is exact for any count below 2**53
        drawn = draws[:, reached].astype(np.float64) @ counts[reached, i].astype(np.float64)
        values = quantiles(drawn, q)
        low[i], high[i] = np.quantile(values[~np.isnan(values)], ends)
    return low, high


def curve_rows(
    counts: Ints,
    bin_width: int,
    *,
    min_prompts: int = 1,
    bootstrap: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    sums: Floats | None = None,
) -> list[dict[str, Any]]:
    """Rows of `curve.json` (and `measured.by_bin`) for one budget, without its name.

    Args:
        counts: int64 [prompts, length bins, acceptance bins].
        min_prompts: bins that fewer prompts reached are left out.
        sums: float64 [length bins], exact sums of acceptance for the mean; without them the
            mean is that of the bins' middles, off by less than 0.0005.

    Returns one dict a bin: bin_start, prompts, tokens, p01, p05, p10, p50, mean, p05_low,
    p05_high; the interval is None when `bootstrap` is 0. No tokens at all: an empty list.
    """
    _check_counts(counts)
    by_bin = counts.sum(axis=0)
    tokens = by_bin.sum(axis=1)
    reached = counts.any(axis=2).sum(axis=0)
    values = {name: quantiles(by_bin, q) for name, q in PERCENTILES.items()}
    low, high = bootstrap_quantiles(counts, 0.05, bootstrap, confidence, seed)
    totals = by_bin @ _MIDDLES if sums is None else np.asarray(sums, np.float64)
    return [
        {
            "bin_start": int(i * bin_width),
            "prompts": int(reached[i]),
            "tokens": int(tokens[i]),
            **{name: float(v[i]) for name, v in values.items()},
            "mean": float(totals[i] / tokens[i]),
            "p05_low": _none_if_nan(low[i]),
            "p05_high": _none_if_nan(high[i]),
        }
        for i in np.flatnonzero((reached >= max(min_prompts, 1)) & (tokens > 0))
    ]


def pooled_row(
    counts: Ints,
    *,
    bootstrap: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    sums: Floats | None = None,
) -> dict[str, Any]:
    """The same figures over all lengths at once.

    Raises:
        ValueError: no tokens; a percentile of nothing is a bug of the caller, not a number.
    """
    _check_counts(counts)
    if not counts.any():
        raise ValueError("no valid tokens: acceptance of nothing has no percentile")
    (row,) = curve_rows(
        counts.sum(axis=1, keepdims=True),
        1,
        bootstrap=bootstrap,
        confidence=confidence,
        seed=seed,
        sums=None if sums is None else np.asarray([np.sum(sums)]),
    )
    del row["bin_start"]
    return row


@dataclass(frozen=True)
class Curve:
    """One statistic of acceptance by budget and length bin.

    Attributes:
        budgets: int64 [budgets], rising; full attention is `DENSE`.
        bin_starts: int64 [bins], rising first lengths of the bins.
        value, low, high: float64 [budgets, bins]; NaN where too few prompts got there
            (`low` and `high` also where no bootstrap was made).
        prompts: int64 [budgets, bins]; 0 where value is NaN.
    """

    page_size: int
    bin_width: int
    budgets: Ints
    bin_starts: Ints
    value: Floats
    low: Floats
    high: Floats
    prompts: Ints

    @classmethod
    def from_json(
        cls,
        data: Any,
        *,
        trajectory: Trajectory | None = None,
        statistic: str = "p05",
        where: str = "curve.json",
    ) -> Curve:
        """Read `curve.json`.

        Args:
            trajectory: `own` (each budget's own rollouts) or `dense` (common dense ones); None
                takes the own ones, or the dense ones of a curve that holds no others.
            statistic: a percentile or `mean`; only p05 has an interval.

        Raises:
            UserError: a key is missing or of another kind, or no row has this trajectory.
        """
        if not isinstance(data, dict):
            kind = "list" if isinstance(data, list) else "single value"
            raise UserError(f"is not a calibration curve: it holds a {kind}, no object", where)
        try:
            if data["schema"] != 1:
                raise UserError(f"schema {data['schema']} is unknown; this version reads 1", where)
            page_size, bin_width = int(data["page_size"]), int(data["bin_width"])
            measured = {r["trajectory"] for r in data["rows"]}
            if trajectory is None:
                trajectory = "own" if "own" in measured or not measured else "dense"
            rows = [r for r in data["rows"] if r["trajectory"] == trajectory]
            cells = [
                (
                    DENSE if r["budget"] is None else int(r["budget"]),
                    int(r["bin_start"]),
                    int(r["prompts"]),
                    *(_number(r.get(k)) for k in (statistic, "p05_low", "p05_high")),
                )
                for r in rows
            ]
        except KeyError as error:
            raise UserError(f"the key {error} is missing", where) from None
        except (TypeError, ValueError) as error:
            raise UserError(f"is not a calibration curve: {error}", where) from None
        if not cells:
            raise UserError(f"holds no row of the trajectory '{trajectory}'", where)
        budgets = np.unique([c[0] for c in cells])
        starts = np.unique([c[1] for c in cells])
        shape = (len(budgets), len(starts))
        value, low, high = (np.full(shape, np.nan) for _ in range(3))
        prompts = np.zeros(shape, np.int64)
        for budget, start, n, middle, lower, upper in cells:
            at = int(np.searchsorted(budgets, budget)), int(np.searchsorted(starts, start))
            if prompts[at]:
                raise UserError(f"two rows for budget {budget} and bin {start}", where)
            if np.isnan(middle):
                continue
            value[at], prompts[at] = middle, n
            if statistic == "p05":
                low[at], high[at] = lower, upper
        return cls(page_size, bin_width, budgets, starts, value, low, high, prompts)


def _check_counts(counts: Ints) -> None:
    if counts.ndim != 3 or counts.shape[2] != len(EDGES) - 1:
        raise ValueError(
            f"counts must be [prompts, length bins, {len(EDGES) - 1}], not {counts.shape}"
        )


def _none_if_nan(x: float) -> float | None:
    return None if np.isnan(x) else float(x)


def _number(x: float | str | None) -> float:
    return float("nan") if x is None else float(x)
