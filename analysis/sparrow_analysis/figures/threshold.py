"""The main figure: which runs collapsed, against the statistic, with the threshold found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sparrow_analysis.figures import style
from sparrow_analysis.frames import STATISTIC_NAMES, records
from sparrow_analysis.threshold import Threshold, decided
from sparrow_analysis.verdicts import DECIDED

BAND, EDGE = "#7b6fd0", "#5b4fb5"
_SHOWN = (*DECIDED, "censored")


def threshold_figure(
    runs: pd.DataFrame,
    threshold: Threshold,
    by_setting: Mapping[str, Threshold] | None = None,
) -> Figure:
    """Share of runs that collapsed against the statistic, and below it every run by setting.

    Args:
        runs: as `verdicts` makes them; dense runs are drawn as a row of controls.
        by_setting: where no single threshold serves, those of the settings, each in its own row;
            the common one is then left out.
    """
    name = threshold.statistic
    shown = runs[runs["verdict"].isin(_SHOWN) & runs[name].notna()]
    rows = _rows(shown)
    with style.styled():
        figure = style.new_figure(7.2, 2.45 + 0.36 * max(len(rows), 2))
        if shown.empty:
            style.empty_note(figure.subplots(), "no run with a verdict and a measured schedule yet")
            return figure
        heights = [1.35, 0.32 * max(len(rows), 2)]
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        stretched = _crowded(shown.loc[~shown["dense"], name])
        if stretched:
            style.stretch_near_one(below)
        _share(top, runs, threshold, fitted=by_setting is None)
        _strip(below, shown, rows, name)
        if by_setting is None:
            _band(top, below, threshold)
        else:
            _own_bands(below, rows, by_setting)
        low = float(shown[name].min())
        if name == "p05":
            low = min(low, float(shown["p05_low"].fillna(low).min()))
        right = max(1.0, float(shown[name].max()))
        below.set_xlim(low - 0.04 * (right - low) - 0.002, right + 0.004)
        below.set_xlabel(
            f"{STATISTIC_NAMES.get(name, name)} of acceptance of the initial policy, "
            "under the run's own schedule, on fresh prompts"
            + ("\n(the axis is stretched towards 1)" if stretched else "")
        )
        _legend(figure, shown)
    return figure


def _crowded(values: pd.Series) -> bool:
    """Whether many levels lie close to 1 and others far below."""
    levels = values.drop_duplicates()
    return len(levels) > 3 and bool(levels.min() < 0.7) and bool(levels.gt(0.9).mean() >= 0.4)


def _rows(shown: pd.DataFrame) -> list[str]:
    """Settings from the top; the controls last."""
    sparse = list(dict.fromkeys(shown.loc[~shown["dense"], "group"]))
    controls = list(dict.fromkeys(shown.loc[shown["dense"], "group"]))
    return [*sparse, *(f"{g} · dense" if g else "dense" for g in controls)]


def _share(axes: Axes, runs: pd.DataFrame, threshold: Threshold, fitted: bool) -> None:
    table = decided(runs, threshold.statistic)
    cells = table.groupby(["group", "level"], sort=False).agg(
        x=(threshold.statistic, "mean"), share=("collapsed", "mean"), runs=("collapsed", "size")
    )
    axes.scatter(
        cells["x"],
        cells["share"],
        s=14 + 9 * cells["runs"],
        facecolor=style.MUTED,
        edgecolor="none",
        alpha=0.55,
        zorder=3,
        clip_on=False,
    )
    if fitted and threshold.kind == "threshold":
        axes.plot(threshold.curve["x"], threshold.curve["chance"], color=style.INK, zorder=4)
    axes.set_ylim(-0.06, 1.06)
    axes.set_yticks([0, 0.5, 1], ["0", "½", "1"])
    axes.set_ylabel("share of runs\nthat collapsed")
    axes.set_title("Collapse against the tail of acceptance")


def _strip(axes: Axes, shown: pd.DataFrame, rows: list[str], name: str) -> None:
    row_of = _row_of(shown)
    dots: dict[str, list[tuple[float, float]]] = {}
    for y, row in enumerate(rows):
        axes.axhline(y, color=style.FAINT, lw=0.6, zorder=0)
        for _, cell in shown[row_of == row].groupby("level", sort=False):
            if name == "p05" and cell["p05_low"].notna().all():
                ends = cell[["p05_low", "p05_high"]].mean()
                axes.plot(ends, [y, y], color=style.MUTED, lw=0.9, alpha=0.6, zorder=1)
            offsets = style.jitter(len(cell), min(0.6, 0.24 * (len(cell) - 1)))
            for run, offset in zip(records(cell.sort_values("verdict")), offsets, strict=True):
                dots.setdefault(run["verdict"], []).append((run[name], y + float(offset)))
    for verdict, places in dots.items():
        x, height = zip(*places, strict=True)
        axes.scatter(x, height, zorder=3 + (verdict == "collapsed"), clip_on=False, **_dot(verdict))
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _row_of(shown: pd.DataFrame) -> pd.Series:
    dense = shown["group"].map(lambda g: f"{g} · dense" if g else "dense")
    return shown["group"].where(~shown["dense"], dense)


def _dot(verdict: str) -> dict[str, Any]:
    """Filled if collapsed, hollow if not, a cross if censored."""
    colour = style.VERDICT_COLOURS[verdict]
    if verdict == "censored":
        return {"s": 20, "marker": "x", "color": colour, "lw": 1.1}
    face = colour if verdict == "collapsed" else style.PAPER
    return {"s": 24, "facecolor": face, "edgecolor": colour, "lw": 1.2}


def _ends(threshold: Threshold) -> tuple[float, float]:
    """The interval, open ends drawn to 0 and 1."""
    low, high = threshold.low, threshold.high
    return (0.0 if math.isinf(low) else low), (1.0 if math.isinf(high) else high)


def _own_bands(axes: Axes, rows: list[str], by_setting: Mapping[str, Threshold]) -> None:
    for y, row in enumerate(rows):
        own = by_setting.get(row)
        if own is not None and own.kind == "threshold":
            left, right = _ends(own)
            box = Rectangle((left, y - 0.42), right - left, 0.84, facecolor=BAND, alpha=0.2, lw=0)
            axes.add_patch(box)
            axes.plot([own.value] * 2, [y - 0.42, y + 0.42], color=EDGE, lw=1.5, zorder=2)


def _band(top: Axes, below: Axes, threshold: Threshold) -> None:
    if threshold.kind != "threshold":
        return
    left, right = _ends(threshold)
    for axes in (top, below):
        axes.axvspan(left, right, color=BAND, alpha=0.16, lw=0, zorder=0)
        axes.axvline(threshold.value, color=EDGE, lw=1.3, zorder=1)
    digits = 2 if right - left >= 0.03 else 3
    top.annotate(
        f"{threshold.value:.{digits}f}",
        (threshold.value, 0.97),
        xycoords=top.get_xaxis_transform(),
        xytext=(4, 0),
        textcoords="offset points",
        ha="left",
        va="top",
        color=EDGE,
        fontsize=9,
        fontweight="bold",
    )


def _legend(figure: Figure, shown: pd.DataFrame) -> None:
    axes = figure.axes[1]
    present = [v for v in _SHOWN if shown["verdict"].eq(v).any()]
    handles: list[Artist] = []
    for verdict in present:
        count = int(shown["verdict"].eq(verdict).sum())
        handles.append(axes.scatter([], [], label=f"{verdict} ({count})", **_dot(verdict)))
    bar = axes.plot([], [], color=style.MUTED, lw=0.9, alpha=0.6, label="95 % interval of p5")
    if "p05_low" in shown and shown["p05_low"].notna().any():
        handles += bar
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=len(handles),
        handletextpad=0.4,
        columnspacing=1.6,
    )
