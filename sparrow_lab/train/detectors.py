"""Collapse detectors: they record, and in a threshold search they never stop a run.

Each is a small pure function of what has been logged so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WINDOW = 5
"""Steps averaged at the start and at the end of a run by the drift detectors."""


def collapsed(evaluations: Sequence[float], fall: float, floor: float | None, stay: int) -> bool:
    """Whether held-out evaluation fell from its running peak and stayed down.

    True if each of the last `stay` evaluations is below (1 - fall) times the peak before it (or
    below `floor`, if set). NaN counts as down: a policy that cannot be evaluated is not well. Fewer
    evaluations than stay + 1 are never a collapse.
    """
    if len(evaluations) < stay + 1:
        return False
    peak = max((x for x in evaluations[:-stay] if not math.isnan(x)), default=math.nan)
    limit = (1 - fall) * peak
    return all(
        math.isnan(x) or x < limit or (floor is not None and x < floor) for x in evaluations[-stay:]
    )


def drift(values: Sequence[float]) -> float:
    """Mean of the last `WINDOW` values over the mean of the first; NaN before there are both."""
    if len(values) < 2 * WINDOW:
        return math.nan
    first, last = sum(values[:WINDOW]), sum(values[-WINDOW:])
    return last / first if first else math.nan


def detector_metrics(
    lengths: Sequence[float],
    entropies: Sequence[float],
    verdicts: Sequence[float],
    metrics: Mapping[str, float],
    verdict: Mapping[str, object],
) -> dict[str, float]:
    """The `detector/...` metrics of a step.

    `length_drop` is 1 when responses are under 60 % of their first length (the paper's early sign),
    `entropy_rise` when entropy has doubled, `nonfinite` counts metrics that are not finite.
    `collapsed` is the rule of the sweep, `verdict`, on the values so far of the metric it names.
    """
    shorter, hotter = drift(lengths), drift(entropies)
    floor = verdict.get("floor")
    return {
        "detector/length_drop": float(shorter < 0.6),
        "detector/entropy_rise": float(hotter > 2.0),
        "detector/nonfinite": float(sum(not math.isfinite(x) for x in metrics.values())),
        "detector/collapsed": float(
            collapsed(
                verdicts,
                fall=float(str(verdict.get("fall", 0.25))),
                floor=None if floor is None else float(str(floor)),
                stay=int(str(verdict.get("stay", 2))),
            )
        ),
    }
