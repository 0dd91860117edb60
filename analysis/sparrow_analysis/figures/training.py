"""How runs went: evaluation of the dense policy, reward of the sparse actor, p5 on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sparrow_analysis.figures import style
from sparrow_analysis.frames import SweepFrames, records
from sparrow_analysis.verdicts import DECIDED

MOST_COLUMNS = 3

_ROWS = (
    ("evaluation", "dense policy:\nheld-out evaluation"),
    ("reward/mean", "sparse actor:\nrollout reward"),
    ("acceptance/p05", "p5 of acceptance\nwhile training"),
)


def training_figures(frames: SweepFrames, runs: pd.DataFrame) -> list[Figure]:
    """One column a setting, in figures of up to `MOST_COLUMNS`, as even as there can be.

    Dense controls are in ink in every column. Lines are single seeds, thin, coloured by the level
    of p5; beside them the levels by falling p5, with the share of their runs that collapsed.
    Collapsed runs end in a filled dot.
    """
    groups = list(dict.fromkeys(runs.loc[~runs["dense"], "group"])) or [""]
    if frames.evaluations.empty and frames.training.empty:
        with style.styled():
            figure = style.new_figure(7.2, 1.6)
            style.empty_note(figure.subplots(), "no training step yet")
            return [figure]
    chunks = np.array_split(np.arange(len(groups)), math.ceil(len(groups) / MOST_COLUMNS))
    return [_figure(frames, runs, [groups[i] for i in chunk]) for chunk in chunks]


def _figure(frames: SweepFrames, runs: pd.DataFrame, groups: Sequence[str]) -> Figure:
    with style.styled():
        figure = style.new_figure(0.9 + 2.9 * max(len(groups), 1.6), 5.9)
        panels = figure.subplots(
            len(_ROWS),
            len(groups),
            sharex=True,
            sharey="row",
            squeeze=False,
            height_ratios=[1.3, 1, 1],
        )
        for column, group in enumerate(groups):
            mine = runs[runs["group"].eq(group) & ~runs["dense"]]
            controls = runs[runs["dense"] & runs["controls"].isin(mine["controls"])]
            if not group:
                controls = runs[runs["dense"]]
            for row, (metric, title) in enumerate(_ROWS):
                axes = panels[row, column]
                _panel(axes, frames, mine, controls, metric, labels=row == 0)
                if column == 0:
                    axes.set_ylabel(title)
            panels[0, column].set_title(group or "dense")
            panels[-1, column].set_xlabel("training step")
            panels[-1, column].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return figure


def _panel(
    axes: Axes,
    frames: SweepFrames,
    mine: pd.DataFrame,
    controls: pd.DataFrame,
    metric: str,
    labels: bool,
) -> None:
    levels = mine.groupby("level", sort=False).agg(p05=("p05", "mean"), names=("names", "first"))
    levels = levels.sort_values("p05", na_position="first")
    colours = style.ramp([-1.0 if math.isnan(p) else float(p) for p in levels["p05"]])
    key: list[tuple[str, str]] = []
    axes.set_ylim(0, 1.02)
    for run in records(controls):
        _line(axes, frames, run, metric, style.INK)
    for (level, row), colour in zip(levels.iterrows(), colours, strict=True):
        runs = mine[mine["level"].eq(str(level))]
        for run in records(runs):
            _line(axes, frames, run, metric, colour)
        text = str(row["names"]).replace("tau=", "τ ").replace("budget=", "")
        key.append((f"{text}  {_fallen(runs)}", colour))
    if len(controls):
        key.append((f"dense  {_fallen(controls)}", style.INK))
    if labels:
        _key(axes, key[::-1])


def _fallen(runs: pd.DataFrame) -> str:
    told = runs["verdict"].isin(DECIDED)
    return f"{int(runs['verdict'].eq('collapsed').sum())}/{int(told.sum())}" if told.any() else "–"


def _key(axes: Axes, key: Sequence[tuple[str, str]]) -> None:
    """Names of the levels down the right side, and how many of their runs collapsed."""
    step = min(0.1, 0.95 / max(len(key), 1))
    note: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
    note["xytext"] = (6, 0)
    axes.annotate("collapsed", (1, 1.06), fontsize=7, color=style.MUTED, va="center", **note)
    for i, (text, colour) in enumerate(key):
        axes.annotate(text, (1, 0.96 - step * i), fontsize=7, color=colour, va="center", **note)


def _series(frames: SweepFrames, run: str, metric: str) -> pd.DataFrame:
    """Columns step and value, without NaN."""
    if metric == "evaluation":
        made = frames.evaluations.loc[frames.evaluations["run"].eq(run), ["step", "value"]]
        return made.dropna()
    if metric not in frames.training:
        return pd.DataFrame({"step": [], "value": []})
    made = frames.training.loc[frames.training["run"].eq(run), ["step", metric]]
    return made.rename(columns={metric: "value"}).dropna()


def _line(
    axes: Axes, frames: SweepFrames, run: dict[str, object], metric: str, colour: str
) -> None:
    series = _series(frames, str(run["run"]), metric)
    if series.empty:
        return
    value = series["value"]
    if metric != "evaluation" and len(series) > 40:
        # a step's own figure is noise of a few dozen samples
        value = value.rolling(max(len(series) // 25, 1), center=True, min_periods=1).mean()
    axes.plot(series["step"], value, color=colour, lw=0.9, alpha=0.85)
    if metric == "evaluation" and run["verdict"] in ("collapsed", "censored"):
        fallen = run["verdict"] == "collapsed"
        axes.scatter(
            series["step"].iloc[-1:],
            series["value"].iloc[-1:],
            s=20,
            marker="o" if fallen else "x",
            color=colour if fallen else style.MUTED,
            zorder=4,
            clip_on=False,
        )
