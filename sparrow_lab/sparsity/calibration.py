"""From an acceptance curve to the cheapest schedule that reaches tau, with its reasons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.curve import Curve, Floats, Ints, curve_rows, pooled_row
from sparrow_lab.sparsity.schedule import DENSE, Schedule

__all__ = ["BinChoice", "Choice", "Curve", "cheapest_schedule", "curve_rows", "pooled_row"]

Rule = Literal["estimate", "lower"]


@dataclass(frozen=True)
class BinChoice:
    """What was chosen for one length bin and why.

    Attributes:
        needed: the least budget that reaches tau in this bin alone (None: see `reason`).
        budget: the budget after the schedule was made to never fall with length.
        value, low, high: the statistic at `budget` in this bin; NaN if it was not measured.
        reason: `reached`; `unreached` (no budget does, so full attention); `undecided` (the
            measured budgets fail and larger ones have too few prompts here, so the next larger).
    """

    start: int
    needed: int | None
    budget: int
    value: float
    low: float
    high: float
    reason: Literal["reached", "unreached", "undecided"]


@dataclass(frozen=True)
class Choice:
    """A chosen schedule with its reasons."""

    schedule: Schedule
    bins: tuple[BinChoice, ...]
    measured_to: int
    """First length without data: from here on the last budget is carried on."""

    @property
    def unreached(self) -> tuple[int, ...]:
        """First lengths of the bins where no budget reaches tau."""
        return tuple(b.start for b in self.bins if b.reason == "unreached")

    @property
    def undecided(self) -> tuple[int, ...]:
        """First lengths of the bins that need a budget for which they have too few prompts."""
        return tuple(b.start for b in self.bins if b.reason == "undecided")


def cheapest_schedule(curve: Curve, tau: float, rule: Rule = "estimate", **settings: Any) -> Choice:
    """The cheapest schedule, never falling with length, that holds the statistic at tau.

    In each bin the statistic is first made monotone in the budget (isotonic regression weighted
    by prompts), then the least budget is taken that reaches tau; so all larger ones reach it too,
    and one noisy dip below tau does not send the choice to the top of the ladder. With the rule
    `lower` the lower end of the interval has to reach tau instead of the estimate. The budget of
    a bin is then the largest needed up to it. Lengths before the first bin take its budget,
    lengths after the last keep the last one; the re-measurement has to show how that goes.

    Args:
        settings: fields of the Schedule (landmark, score, dense_layers, reserved, model, name).

    Raises:
        UserError: no bin has data, tau is outside (0, 1], or `lower` without intervals.
    """
    if not 0 < tau <= 1:
        raise UserError(f"tau must be above 0 and at most 1, found {tau}", "tau")
    known = ~np.isnan(curve.value)
    if not known.any():
        raise UserError("the curve has no length bin that enough prompts reached", "calibration")
    measure = curve.value if rule == "estimate" else curve.low
    if np.isnan(measure[known]).any():
        raise UserError("the rule 'lower' needs intervals: calibrate with bootstrap > 0", "rule")
    bins: list[BinChoice] = []
    budget = 0
    for j in np.flatnonzero(known.any(axis=0)):
        needed, reason = _needed(curve.budgets, measure[:, j], curve.prompts[:, j], tau)
        budget = max(budget, needed)
        at = (int(np.searchsorted(curve.budgets, budget)), int(j))
        measured = at[0] < len(curve.budgets)
        value, low, high = (
            float(x[at]) if measured else float("nan") for x in (curve.value, curve.low, curve.high)
        )
        own = needed if reason == "reached" else None
        bins.append(BinChoice(int(curve.bin_starts[j]), own, budget, value, low, high, reason))
    steps = [(0, bins[0].budget)]
    steps += [(b.start, b.budget) for a, b in itertools.pairwise(bins) if b.budget != a.budget]
    schedule = Schedule(
        page_size=curve.page_size,
        edges=tuple(e for e, _ in steps),
        budgets=tuple(b for _, b in steps),
        **{"name": f"tau={tau:g}", "tau": tau, **settings},
    )
    return Choice(schedule, tuple(bins), bins[-1].start + curve.bin_width)


def isotonic(values: Sequence[float] | Floats, weights: Sequence[float] | Floats) -> Floats:
    """The never-falling sequence nearest to `values` in weighted squares (pool adjacent violators).

    Empty in, empty out; weights must be positive.
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((float(value), float(weight), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks]).astype(np.float64)


def _needed(
    budgets: Ints, values: Floats, prompts: Ints, tau: float
) -> tuple[int, Literal["reached", "unreached", "undecided"]]:
    """The budget that one bin asks for, and on what grounds."""
    have = np.flatnonzero(~np.isnan(values))
    reaches = isotonic(values[have], np.maximum(prompts[have], 1)) >= tau - 1e-12
    if reaches.any():
        return int(budgets[have[int(np.argmax(reaches))]]), "reached"
    beyond = int(have[-1]) + 1
    if beyond < len(budgets):
        return int(budgets[beyond]), "undecided"
    return DENSE, "unreached"
