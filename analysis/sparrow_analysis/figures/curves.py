"""Acceptance against length: the tail falls, the mean hides it, the schedule answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_analysis.curves import percentile_curves, same_schedules, staircase
from sparrow_analysis.figures import style

HEIGHTS = (2.2, 1.7, 1.5)
"""Inches of the rows: p5, mean, schedules."""

KINDS = {"own": "own trajectories", "dense": "common dense trajectories"}
"""Trajectories by name, the ones to draw as full lines first."""


def curves_figure(
    curves: pd.DataFrame,
    steps: pd.DataFrame,
    schedules: pd.DataFrame,
    model: str,
) -> Figure:
    """One column a page size of `model`: p5 by budget, the mean by budget, schedules as steps.

    Own trajectories are lines with a band for the interval; common dense ones thin and dashed,
    or, where nothing else was measured, in place of them.
    Schedules that are the same are drawn once, with all their names.
    """
    mine = curves[curves["model"].eq(model)]
    distinct = same_schedules(schedules[schedules["model"].eq(model) & ~schedules["dense"]])
    sizes = sorted({int(s) for s in mine["page_size"].dropna()})
    sizes = sizes or sorted({int(s) for s in distinct["page_size"].dropna()})
    with style.styled():
        if not sizes:
            figure = style.new_figure(7.2, 1.6)
            style.empty_note(figure.subplots(), f"no curve of {model} yet")
            return figure
        with_steps = not distinct.empty
        heights = HEIGHTS if with_steps else HEIGHTS[:2]
        figure = style.new_figure(max(5.4, 0.5 + 3.5 * len(sizes)), sum(heights) + 0.5)
        panels = figure.subplots(
            len(heights),
            len(sizes),
            sharex=True,
            sharey="row",
            squeeze=False,
            height_ratios=heights,
        )
        until = _last_length(mine, steps[steps["model"].eq(model)])
        low = _lowest(mine)
        # prompts are rarely short: nothing is measured, and nothing chosen, before the first bin
        first = max(0.0, float(mine["bin_start"].min()) - 0.04 * until) if len(mine) else 0.0
        kinds = [k for k in KINDS if mine["trajectory"].eq(k).any()] or ["own"]
        for column, size in enumerate(sizes):
            here = mine[mine["page_size"].eq(size)]
            axes = panels[:, column]
            _curves(axes[0], here, "p05", kinds, low)
            _curves(axes[1], here, "mean", kinds, low)
            axes[0].set_title(f"{model}, page {size}")
            _taus(axes[0], distinct[distinct["page_size"].eq(size)])
            if with_steps:
                _steps(axes[2], steps, distinct[distinct["page_size"].eq(size)], until)
            axes[-1].set_xlabel("length: tokens in the cache")
            axes[0].set_xlim(first, until)
            axes[0].annotate(
                "budget",
                (1, 1),
                xycoords="axes fraction",
                xytext=(5, 8),
                textcoords="offset points",
                fontsize=7,
                color=style.MUTED,
                ha="left",
            )
        if len(mine):
            _key(figure, panels[0, 0], kinds)
        panels[0, 0].set_ylabel("p5 of acceptance")
        panels[1, 0].set_ylabel("mean acceptance")
        if with_steps:
            panels[2, 0].set_ylabel("budget (tokens)")
    return figure


def _key(figure: Figure, axes: Axes, kinds: Sequence[str]) -> None:
    lines = axes.plot([], [], color=style.INK, lw=1.4, label=KINDS[kinds[0]])
    band = axes.fill_between(
        [], [], [], color=style.INK, alpha=0.15, lw=0, label="95 % interval of p5"
    )
    handles = [*lines, band]
    for kind in kinds[1:]:
        handles += axes.plot([], [], color=style.INK, lw=0.8, ls=(0, (2, 1.5)), label=KINDS[kind])
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=7.5)


def _last_length(curves: pd.DataFrame, steps: pd.DataFrame) -> float:
    if len(curves):
        return float((curves["bin_start"] + curves["bin_width"]).max())
    return float(steps["start"].max()) * 1.15 + 16 if len(steps) else 1.0


def _lowest(curves: pd.DataFrame) -> float:
    """One scale for p5 and the mean, so that the eye compares like with like."""
    if curves.empty:
        return 0.0
    return max(0.0, math.floor((float(curves["p05"].min()) - 0.02) * 20) / 20)


def _curves(
    axes: Axes, curves: pd.DataFrame, statistic: str, kinds: Sequence[str], low: float
) -> None:
    source, *others = (percentile_curves(curves, statistic, kind) for kind in kinds)
    budgets = sorted(source["budget"].dropna().unique()) + [math.nan] * bool(
        source["budget"].isna().any()
    )
    colours = style.ramp(budgets)
    ends: list[tuple[float, float, str, str]] = []
    for budget, colour in zip(budgets, colours, strict=True):
        line = source[_same(source["budget"], budget)]
        axes.fill_between(line["length"], line["low"], line["high"], color=colour, alpha=0.13, lw=0)
        axes.plot(line["length"], line["value"], color=colour, lw=1.4)
        for other in others:
            dashed = other[_same(other["budget"], budget)]
            axes.plot(
                dashed["length"], dashed["value"], color=colour, lw=0.8, ls=(0, (2, 1.5)), alpha=0.8
            )
        known = line.dropna(subset=["value"])
        last = (known["length"].max(), known["value"].iloc[-1]) if len(known) else (math.nan,) * 2
        ends.append((float(last[0]), float(last[1]), style.short_budget(budget), colour))
    axes.set_ylim(low, 1.0 + 0.02 * (1 - low))
    if statistic == "p05":
        right = max((x for x, *_ in ends if math.isfinite(x)), default=0.0)
        order = _order(source, budgets, style.label_height(axes, HEIGHTS[0]))
        shown = _thinned([ends[i] for i in order])
        style.label_ends(axes, [(right, y, t, c) for _, y, t, c in shown], HEIGHTS[0], sort=False)


def _order(lines: pd.DataFrame, budgets: Sequence[float], near: float) -> list[int]:
    """Indices of `budgets`, lowest label first: by where each line ends.

    Lines may end at different lengths. Labels closer than `near` are written apart, so their order
    is all that they say: it is that of the lines at the last length that both have, and of the
    budgets where the lines are equal there.
    """
    by_budget = [
        dict(zip(mine["length"], mine["value"], strict=True))
        for mine in (lines[_same(lines["budget"], b)].dropna(subset=["value"]) for b in budgets)
    ]
    ends = {i: line[max(line)] for i, line in enumerate(by_budget) if line}

    def swapped(below: int, above: int) -> bool:
        both = by_budget[below].keys() & by_budget[above].keys()
        if ends[above] - ends[below] >= near or not both:
            return False
        a, b = by_budget[below][max(both)], by_budget[above][max(both)]
        return a > b or (a == b and below > above)

    order = sorted(ends, key=lambda i: (ends[i], i))
    for _ in order:  # lines that cross more than once have no order: stop after as many passes
        for k in range(len(order) - 1):
            if swapped(order[k], order[k + 1]):
                order[k], order[k + 1] = order[k + 1], order[k]
    return order


def _thinned(
    ends: Sequence[tuple[float, float, str, str]], most: int = 12
) -> list[tuple[float, float, str, str]]:
    """Labels of at most `most` lines, evenly over the ladder of budgets."""
    if len(ends) <= most:
        return list(ends)
    return [ends[i] for i in sorted({round(k) for k in np.linspace(0, len(ends) - 1, most)})]


def _same(column: pd.Series, budget: float) -> pd.Series:
    return column.isna() if math.isnan(budget) else column.eq(budget)


def _taus(axes: Axes, distinct: pd.DataFrame) -> None:
    """The levels aimed at; a label is left out where it would touch the one below it."""
    low, high = axes.get_ylim()
    written = -math.inf
    for tau in sorted(distinct["tau"].dropna().unique()):
        axes.axhline(tau, color=style.MUTED, lw=0.8, ls=(0, (1, 2)), zorder=1)
        if tau - written < 0.055 * (high - low) or not low < tau < high:
            continue
        written = tau
        axes.annotate(
            f"τ {tau:g}",
            (0, tau),
            xycoords=("axes fraction", "data"),
            xytext=(3, 1.5),
            textcoords="offset points",
            fontsize=7,
            color=style.MUTED,
            va="bottom",
        )


def _steps(axes: Axes, steps: pd.DataFrame, distinct: pd.DataFrame, until: float) -> None:
    if distinct.empty:
        style.empty_note(axes, "no schedule yet")
        return
    ordered = distinct.sort_values("p05", na_position="first")
    colours = style.ramp([0.0 if math.isnan(p) else float(p) for p in ordered["p05"]])
    lines = staircase(steps[steps["schedule_id"].isin(ordered["schedule_id"])], until)
    ends = []
    for (_, row), colour in zip(ordered.iterrows(), colours, strict=True):
        line = lines[lines["schedule_id"].eq(row["schedule_id"])]
        # more than everything is everything: such a step is drawn along the upper edge
        budget = line["budget"].fillna(line["length"]).clip(upper=1.04 * until)
        axes.plot(line["length"], budget, color=colour, lw=1.5, solid_joinstyle="miter")
        if len(line):
            ends.append(
                (
                    float(line["length"].iloc[-1]),
                    float(budget.iloc[-1]),
                    _short(str(row["names"])),
                    colour,
                )
            )
    axes.plot([0, until], [0, until], color=style.MUTED, lw=0.8, ls=(0, (1, 2)))
    axes.annotate(
        "everything",
        (until * 0.98, until * 0.98),
        fontsize=7,
        color=style.MUTED,
        ha="right",
        va="bottom",
    )
    axes.set_ylim(0, until * 1.08)
    style.label_ends(axes, _thinned(ends, 9), HEIGHTS[2])


def _short(names: str) -> str:
    return names.replace("tau=", "τ ").replace("budget=", "")
