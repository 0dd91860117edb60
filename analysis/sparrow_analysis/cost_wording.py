"""Cost as sentences. What is modelled is called modelled, what was timed is called timed."""

from __future__ import annotations

import math

import pandas as pd

from sparrow_analysis.cheapest import Cheapest, Choice, seconds_a_step

SMALL = "cpu"
"""Profiles that start so belong to models which are too small for page choice to pay."""

PARTS = ("time_rollout_s", "time_train_s", "time_evaluate_s")

NOTHING = (
    "Without a threshold it cannot be said which schedule reaches it at the least cost, nor how "
    "much faster that is."
)


def cheapest_line(choices: tuple[Choice, ...]) -> str:
    """The cheapest schedules at or above the threshold, in one line; empty without one."""
    known = [(c.part, c.reaching) for c in choices if c.reaching is not None]
    if not known:
        return ""
    parts = [f"{part} {_name(best)}, {best.share:.2f} of dense" for part, best in known]
    unit = "eFLOPs" if known[0][1].unit == "eflops" else "KV reads"
    return f"Cheapest measured at or above it (modelled {unit}): {'; '.join(parts)}"


def cheapest_sentences(choices: tuple[Choice, ...]) -> list[str]:
    """Page size and schedule to take, a sentence or more each model."""
    return [_choice(c) for c in choices] if choices else [NOTHING]


def _choice(c: Choice) -> str:
    if c.reaching is None:
        return f"{c.part}: no measured schedule reaches p5 = {c.least:.2f}."
    text = (
        f"{c.part}: the cheapest measured schedule at or above p5 = {c.least:.2f} is "
        f"{_described(c.reaching)}"
    )
    if math.isinf(c.high):
        return f"{text} The interval is open above, so none can be called safely above it."
    if c.safe is None:
        return f"{text} No measured schedule lies above the interval (p5 = {c.high:.2f})."
    if c.safe.names == c.reaching.names and c.safe.page_size == c.reaching.page_size:
        return f"{text} Its p5 lies above the whole interval."
    return f"{text} Above the whole interval (p5 = {c.high:.2f}) it is {_described(c.safe)}"


def _described(best: Cheapest) -> str:
    if best.unit == "eflops":
        cost = f"{best.share:.2f} of dense attention's eFLOPs a token"
    else:
        cost = (
            f"{best.share:.2f} of dense attention's KV reads (about {best.cost:.0f} of "
            f"{best.dense_cost:.0f} tokens in a sparse layer, landmarks counted)"
        )
    rough = ", a rough profile" if best.hardware.startswith(SMALL) else ""
    speed = (
        f"decoding {best.speedup:.2f} times as fast as dense on {best.hardware}{rough}"
        if math.isfinite(best.speedup)
        else "how much faster cannot be modelled, for the model's shape is not known"
    )
    text = f"{_name(best)} (p5 {best.p05:.3f}; {best.collapsed} of {best.runs} runs collapsed). "
    text += f"Modelled: {cost}; {speed}."
    if math.isfinite(best.rollout_s) and math.isfinite(best.dense_rollout_s):
        slower = "slower" if best.rollout_s > best.dense_rollout_s else "faster"
        text += (
            f" Timed here: rollout {best.rollout_s:.2g} s a step, dense "
            f"{best.dense_rollout_s:.2g} s: {slower}."
        )
    return text


def time_caption(runs: pd.DataFrame) -> str:
    """How to read the wall times; says so where sparse runs took longer than dense ones."""
    text = "Wall time of the workers as they ran here: it holds for this machine and these models."
    sparse = runs[~runs["dense"] & runs["verdict"].ne("collapsed")]
    pairs = []
    for controls, mine in sparse.groupby("controls", sort=False):
        own = seconds_a_step(mine, PARTS)
        dense = seconds_a_step(runs[runs["dense"] & runs["controls"].eq(controls)], PARTS)
        if own > dense:  # False with NaN
            part = f"{controls!s}: " if controls else ""
            pairs.append(f"{part}{own:.2g} s a training step against {dense:.2g} s dense")
    if not pairs:
        return text
    text += f" Sparse runs that did not collapse were slower: {'; '.join(pairs)}."
    everywhere = len(pairs) == sparse["controls"].nunique()
    if everywhere and sparse["hardware"].str.startswith(SMALL).any():
        text += (
            " Tiny models on a CPU are not faster sparse: at such lengths choosing pages costs "
            "more than it saves. What sparsity would save elsewhere is modelled, not timed."
        )
    return text


def _name(best: Cheapest) -> str:
    return f"page {best.page_size}, {best.names}"
