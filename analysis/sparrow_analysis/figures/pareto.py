"""Cost against quality: which page size and budget to take."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_analysis.figures import style
from sparrow_analysis.frames import records
from sparrow_analysis.pareto import UNITS, volumes


def budgets_figure(front: pd.DataFrame, threshold: float = math.nan) -> Figure:
    """p5 of fixed budgets against their cost: one panel a model, one line a page size.

    Args:
        front: of `budget_front`. threshold: drawn as a line, if it is a number.
    """
    return _figure(front, "p5 of acceptance", "budgets before training", threshold)


def runs_figure(front: pd.DataFrame) -> Figure:
    """Final evaluation of the dense policy against the cost of the schedule it was trained with."""
    return _figure(front, "final evaluation of the dense policy", "trained runs", math.nan)


def _figure(front: pd.DataFrame, quality: str, what: str, threshold: float) -> Figure:
    models = list(dict.fromkeys(front["model"]))
    with style.styled():
        if not models:
            figure = style.new_figure(7.2, 1.6)
            style.empty_note(figure.subplots(), "nothing with a cost has been measured yet")
            return figure
        figure = style.new_figure(0.7 + 3.5 * max(len(models), 1.4), 3.4)
        panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
        sizes = sorted({int(s) for s in front["page_size"].dropna()})
        look = style.part_styles(sizes)
        volume = volumes(front)
        for axes, model in zip(panels, models, strict=True):
            mine = front[front["model"].eq(model)]
            _panel(axes, mine, look)
            axes.set_title(f"{model}: {what}")
            axes.set_xlabel(UNITS["eflops" if mine["unit"].eq("eflops").all() else "reads"])
            if math.isfinite(threshold):
                axes.axhline(threshold, color="#5b4fb5", lw=1.1, zorder=1)
                axes.annotate(
                    f"threshold {threshold:.2f}",
                    (0, threshold),
                    xycoords=("axes fraction", "data"),
                    xytext=(4, 2),
                    textcoords="offset points",
                    ha="left",
                    fontsize=7,
                    color="#5b4fb5",
                )
            _key(axes, mine, volume[volume["model"].eq(model)], look)
        panels[0].set_ylabel(quality)
    return figure


def _panel(axes: Axes, mine: pd.DataFrame, look: dict[object, tuple[str, str]]) -> None:
    for size, line in mine.dropna(subset=["page_size"]).groupby("page_size"):
        colour, marker = look[int(str(size))]
        ordered = line.sort_values("cost")
        if "schedule" not in ordered:
            axes.plot(ordered["cost"], ordered["quality"], color=colour, lw=0.9, alpha=0.7)
        for row in records(ordered):
            low, high = row["low"], row["high"]
            axes.plot([row["cost"]] * 2, [low, high], color=colour, lw=0.8, alpha=0.45)
            face = colour if row["on_front"] else style.PAPER
            axes.scatter(
                [row["cost"]],
                [row["quality"]],
                s=26,
                marker=marker,
                facecolor=face,
                edgecolor=colour,
                lw=1.1,
                zorder=3,
            )
    for row in records(mine[mine["page_size"].isna()]):
        axes.scatter([row["cost"]], [row["quality"]], s=42, marker="*", color=style.INK, zorder=3)
        axes.annotate(
            "dense",
            (row["cost"], row["quality"]),
            xytext=(0, -11),
            textcoords="offset points",
            fontsize=7,
            ha="center",
        )
    best = mine[mine["on_front"]].sort_values("cost")
    axes.plot(
        best["cost"],
        best["quality"],
        color=style.INK,
        lw=0.9,
        ls=(0, (3, 2)),
        drawstyle="steps-post",
        zorder=2,
    )
    axes.set_xlim(left=0)
    axes.margins(y=0.08)


def _key(
    axes: Axes, mine: pd.DataFrame, volume: pd.DataFrame, look: dict[object, tuple[str, str]]
) -> None:
    handles: list[Artist] = []
    for size in sorted({int(s) for s in mine["page_size"].dropna()}):
        share = volume.loc[volume["page_size"].eq(size), "volume"]
        text = f"page {size}" + (f"  volume {float(share.iloc[0]):.2f}" if len(share) else "")
        colour, marker = look[size]
        handles.append(axes.scatter([], [], s=26, marker=marker, color=colour, label=text))
    handles += axes.plot([], [], color=style.INK, lw=0.9, ls=(0, (3, 2)), label="front")
    axes.legend(handles=handles, loc="best", fontsize=7, handletextpad=0.4, borderaxespad=0.8)
