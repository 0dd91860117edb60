"""Did a training run collapse? The one rule, that of `verdict:`, applied to its evaluations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparrow_lab.config.schema import VerdictConfig

Kind = Literal["collapsed", "stable", "stagnated", "censored", "unknown", "waiting"]

KINDS: dict[Kind, str] = {
    "collapsed": "the evaluation fell from its peak and stayed down to the end",
    "stable": "it did not, and ended above where it began",
    "stagnated": "it did not, but ended no higher than it began",
    "censored": "the run ended before its last planned step, so it may yet have fallen",
    "unknown": "it ran to the end, but its evaluations do not let the rule be applied",
    "waiting": "nothing was evaluated yet",
}
DECIDED: tuple[Kind, ...] = ("collapsed", "stable", "stagnated")
"""The verdicts that a threshold can be sought from."""


@dataclass(frozen=True)
class Verdict:
    """How one run ended.

    Attributes:
        start, peak, final: first, highest and last finite evaluation; NaN if there is none.
        peak_step, fell_step: when it peaked first; first evaluation of the last stretch that is
            down. None if there is no such thing.
        down: whether the last `stay` evaluations are down by now, however far the run got.
        lowest, lowest_step: lowest evaluation that lay below the line that the rule had drawn by
            then, its step; NaN and None if none did. One of the last stretch that is down is no
            such dip: it is the fall.
        came_back: whether the rule, applied at an earlier evaluation, would have said collapsed of
            a run of which it does not say so at the end.
        evaluations, nan: how many there are, and how many of them are not finite.
        evidence: one sentence.
    """

    kind: Kind
    start: float
    peak: float
    peak_step: int | None
    final: float
    fell_step: int | None
    down: bool
    lowest: float
    lowest_step: int | None
    came_back: bool
    evaluations: int
    nan: int
    evidence: str


def judge(
    steps: Sequence[int], values: Sequence[float], rule: VerdictConfig, finished: bool
) -> Verdict:
    """Apply the rule to the evaluations of one run, by rising step.

    Collapsed: each of the last `stay` evaluations is below (1 - fall) times the peak before them,
    or below `floor`. The detector that watches a run while it trains says the same.
    A value that is not finite counts as down, for a policy that cannot be evaluated is not well;
    with no finite value at all, or fewer than `stay` + 1 values, the rule says nothing.

    Args:
        finished: whether the run reached its last planned step. One that did not is censored,
            even if it was down: it might have come back.
    """
    if len(steps) != len(values):
        raise ValueError(f"{len(steps)} steps for {len(values)} evaluations")
    finite = [(s, v) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    start = finite[0][1] if finite else math.nan
    final = finite[-1][1] if finite else math.nan
    peak_step, peak = max(finite, key=lambda p: (p[1], -p[0])) if finite else (None, math.nan)
    limit, down = _down(values, rule)
    fell = _fell_at(steps, values, limit, rule) if down else None
    kind = _kind(values, rule, finished, down, start, bool(finite))
    dip = _dip(steps, values, rule, fell)
    earlier = (_down(values[:n], rule)[1] for n in range(rule.stay + 1, len(values)))
    return Verdict(
        kind=kind,
        start=start,
        peak=peak,
        peak_step=peak_step,
        final=final,
        fell_step=fell,
        down=down,
        lowest=dip[1] if dip else math.nan,
        lowest_step=dip[0] if dip else None,
        came_back=not down and any(earlier),
        evaluations=len(values),
        nan=len(values) - len(finite),
        evidence=_evidence(kind, steps, values, finite, limit, fell, dip, rule),
    )


def _is_down(value: float, limit: float, rule: VerdictConfig) -> bool:
    below_floor = rule.floor is not None and value < rule.floor
    return not math.isfinite(value) or value < limit or below_floor


def _down(values: Sequence[float], rule: VerdictConfig) -> tuple[float, bool]:
    """The line below which a run is down (NaN without a peak), and whether it is down by now."""
    earlier = [v for v in values[: -rule.stay] if math.isfinite(v)]
    limit = (1 - rule.fall) * max(earlier) if earlier else math.nan
    if len(values) < rule.stay + 1 or not any(map(math.isfinite, values)):
        return limit, False
    return limit, all(_is_down(v, limit, rule) for v in values[-rule.stay :])


def _fell_at(
    steps: Sequence[int], values: Sequence[float], limit: float, rule: VerdictConfig
) -> int | None:
    """The step of the first evaluation of the last stretch that is down."""
    fell = None
    for step, value in zip(reversed(steps), reversed(values), strict=True):
        if not _is_down(value, limit, rule):
            break
        fell = step
    return fell


def _dip(
    steps: Sequence[int], values: Sequence[float], rule: VerdictConfig, fell: int | None
) -> tuple[int, float, float] | None:
    """Step, value and line of the lowest evaluation below the line of its time; None without one.

    The line is that of the highest evaluation before it, or the floor if that is higher. Values
    that are not finite are counted elsewhere; those from step `fell` on are the fall itself.
    """
    found, peak = None, math.nan
    for step, value in zip(steps, values, strict=True):
        if fell is not None and step >= fell:
            break
        if not math.isfinite(value):
            continue
        lines = [(1 - rule.fall) * peak] if math.isfinite(peak) else []
        lines += [rule.floor] if rule.floor is not None else []
        below = [line for line in lines if value < line]
        if below and (found is None or value < found[1]):
            found = (step, value, max(below))
        peak = value if math.isnan(peak) else max(peak, value)
    return found


def _kind(
    values: Sequence[float],
    rule: VerdictConfig,
    finished: bool,
    down: bool,
    start: float,
    any_finite: bool,
) -> Kind:
    if not values:
        return "unknown" if finished else "waiting"
    if not finished:
        return "censored"
    if len(values) < rule.stay + 1 or not any_finite:
        return "unknown"
    if down:
        return "collapsed"
    last = [v for v in values[-rule.stay :] if math.isfinite(v)]
    return "stable" if last and sum(last) / len(last) > start else "stagnated"


def _evidence(
    kind: Kind,
    steps: Sequence[int],
    values: Sequence[float],
    finite: Sequence[tuple[int, float]],
    limit: float,
    fell: int | None,
    dip: tuple[int, float, float] | None,
    rule: VerdictConfig,
) -> str:
    if not values:
        return "No evaluation."
    nan = len(values) - len(finite)
    not_finite = f" {nan} of {len(values)} evaluations are not finite." if nan else ""
    if not finite:
        return f"None of {len(values)} evaluations is finite."
    peak_step, peak = max(finite, key=lambda p: (p[1], -p[0]))
    shown = f"{values[-1]:.2f}" if math.isfinite(values[-1]) else "not finite"
    text = f"From {finite[0][1]:.2f} to a peak of {peak:.2f} at step {peak_step}"
    if peak_step == steps[-1]:
        text += ", the last evaluation"
    else:
        text += f", then {shown} at {steps[-1]}"
    if kind == "unknown":
        return f"{text}; {len(values)} evaluations, the rule needs {rule.stay + 1}.{not_finite}"
    if fell is not None:
        below = f"below {limit:.2f}" if math.isfinite(limit) else "down"
        text += f"; {below} since step {fell}"
    elif dip is not None:
        text += f"; lowest {dip[1]:.2f} at step {dip[0]}, below the line of {dip[2]:.2f}"
    if kind == "censored":
        down = fell is not None
        text += "; broke off " + ("while it was down" if down else "before its last step")
    return f"{text}.{not_finite}"
