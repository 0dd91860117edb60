"""The tail and the mean side by side: how well each statistic tells who will collapse."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_analysis.figures import style
from sparrow_analysis.frames import STATISTIC_NAMES, STATISTICS
from sparrow_analysis.predictors import Predictors
from sparrow_analysis.threshold import decided
from sparrow_analysis.verdicts import DECIDED

_OUTLINE: dict[str, Any] = {"s": 20, "facecolor": "none", "edgecolor": style.INK, "lw": 1}


NARROWEST = 0.01
"""Least width of a statistic's axis."""


def statistics_figure(runs: pd.DataFrame) -> Figure:
    """One panel a statistic: its value against the final evaluation of every decided sparse run."""
    names = [n for n in STATISTICS if n in runs and runs[n].notna().any()]
    table = decided(runs, names[0]) if names else runs.iloc[:0]
    with style.styled():
        if table.empty:
            figure = style.new_figure(7.2, 1.6)
            style.empty_note(figure.subplots(), "no run with a verdict and a measured schedule yet")
            return figure
        figure = style.new_figure(7.4, 2.6)
        panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        settings = style.part_styles(list(table["group"]))
        for axes, name in zip(panels, names, strict=True):
            _panel(axes, table, name, settings)
        panels[0].set_ylabel("final evaluation\nof the dense policy")
        handles = [
            panels[0].scatter([], [], marker=marker, label=str(group), **_OUTLINE)
            for group, (_, marker) in settings.items()
        ]
        handles += [
            panels[0].scatter([], [], s=20, color=style.VERDICT_COLOURS[verdict], label=verdict)
            for verdict in DECIDED
            if table["verdict"].eq(verdict).any()
        ]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=min(len(handles), 6),
            fontsize=7.5,
            handletextpad=0.3,
        )
    return figure


def scores_figure(predictors: Predictors) -> Figure:
    """The two scores of each statistic with their intervals; p5 in colour."""
    with style.styled():
        if predictors.table.empty:
            figure = style.new_figure(7.2, 1.6)
            style.empty_note(figure.subplots(), "not enough runs to compare statistics")
            return figure
        figure = style.new_figure(7.4, 2.1)
        table = predictors.table.set_index("statistic")
        names = [n for n in STATISTICS if n in table.index][::-1]
        left, right = figure.subplots(1, 2, sharey=True)
        _forest(left, table, names, "auc", "AUC over all runs")
        left.set_xlabel("chance that a collapsed run has the lower value")
        left.set_yticks(range(len(names)), [STATISTIC_NAMES.get(n, n) for n in names])
        if table["transfer"].notna().any():
            _forest(right, table, names, "transfer", "Threshold carried over")
            right.set_xlabel("balanced accuracy on the setting left out")
        else:
            style.empty_note(right, "no setting can be left out:\nno threshold to carry over")
    return figure


def _panel(
    axes: Axes, table: pd.DataFrame, name: str, settings: dict[object, tuple[str, str]]
) -> None:
    for (group, verdict), mine in table.groupby(["group", "verdict"], sort=False):
        axes.scatter(
            mine[name],
            mine["final"],
            s=17,
            marker=settings[group][1],
            facecolor=style.VERDICT_COLOURS[str(verdict)],
            edgecolor=style.PAPER,
            lw=0.5,
            alpha=0.9,
            clip_on=False,
            zorder=3,
        )
    axes.set_title(STATISTIC_NAMES.get(name, name), fontweight="normal", fontsize=9)
    axes.set_ylim(0, 1.02)
    low, high = table[name].min(), table[name].max()
    if high - low < NARROWEST:  # a statistic that hardly moves is to look like one
        axes.set_xlim(high - NARROWEST, high + NARROWEST / 10)
    axes.locator_params(axis="x", nbins=3)
    axes.tick_params(axis="x", labelsize=7.5)


def _forest(axes: Axes, table: pd.DataFrame, names: list[str], key: str, title: str) -> None:
    best = table[key].max() if table[key].nunique() > 1 else None
    for y, name in enumerate(names):
        value, low, high = (float(table[c][name]) for c in (key, f"{key}_low", f"{key}_high"))
        colour = "#5b4fb5" if name == "p05" else style.INK
        axes.plot([low, high], [y, y], color=colour, lw=1.6, solid_capstyle="butt", alpha=0.7)
        axes.scatter([value], [y], s=26, color=colour, zorder=3, clip_on=False)
        bold = "bold" if value == best else "normal"
        axes.text(
            1.02,
            y,
            f"{value:.2f}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=colour,
            fontweight=bold,
        )
    axes.axvline(0.5, color=style.MUTED, lw=0.8, ls=(0, (3, 3)))
    axes.text(0.5, -0.55, " a coin", fontsize=7, color=style.MUTED, va="bottom", ha="left")
    lowest = float(table[[key, f"{key}_low"]].min().min())
    axes.set_xlim(min(0.45, lowest - 0.03), 1.0)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_title(title, fontweight="normal", fontsize=9)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
