"""Where the time went: by stage over the whole sweep, and by part inside training."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_analysis.figures import style

_PARTS = {
    "time_rollout_s": ("rollout", "#0072b2"),
    "time_train_s": ("update", "#e69f00"),
    "time_evaluate_s": ("evaluation", "#009e73"),
}
_STAGES = ("calibrate", "schedule", "train", "evaluate")
MOST_BARS = 24


def time_figure(tasks: pd.DataFrame, runs: pd.DataFrame) -> Figure:
    """Left: hours of all finished points by stage. Right: seconds a training step, by schedule."""
    bars = step_times(runs)
    with style.styled():
        figure = style.new_figure(7.4, max(1.9, 0.8 + 0.21 * min(len(bars), MOST_BARS)))
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.9])
        _stages(left, tasks, min(len(bars), MOST_BARS))
        _parts(right, bars)
        if right.get_legend_handles_labels()[0]:
            figure.legend(loc="outside lower right", ncols=3, fontsize=7.5)
    return figure


def step_times(runs: pd.DataFrame) -> pd.DataFrame:
    """Mean seconds a training step by setting and schedule: group, names, p05 and the parts."""
    steps = runs["last_step"].astype("float64")
    made = runs[["group", "names", "p05", *_PARTS]].copy()
    for name in _PARTS:
        made[name] = made[name] / steps.where(steps > 0)
    made = made.dropna(subset=["time_rollout_s"])
    means = made.groupby(["group", "names"], sort=False).mean().reset_index()
    return means.sort_values(["group", "p05"], kind="stable").reset_index(drop=True)


def _stages(axes: Axes, tasks: pd.DataFrame, beside: int) -> None:
    seconds = tasks.groupby("stage")["seconds"].sum()
    stages = [s for s in _STAGES if float(seconds.get(s, 0.0)) > 0]
    if not stages:
        style.empty_note(axes, "nothing has finished yet")
        return
    total = float(sum(seconds[s] for s in stages))
    unit, size = ("hours", 3600) if total > 5400 else ("minutes", 60)
    axes.barh(
        range(len(stages)), [seconds[s] / size for s in stages], color=style.MUTED, height=0.6
    )
    for y, stage in enumerate(stages):
        share = seconds[stage] / total
        axes.text(seconds[stage] / size, y, f" {share:.0%}", va="center", fontsize=7.5)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_ylim(max(len(stages), 0.55 * beside) - 0.4, -0.6)
    axes.margins(x=0.18)
    axes.set_xlabel(f"{unit} of worker time, all points")
    axes.set_title("By stage")
    axes.grid(axis="y", visible=False)


def _parts(axes: Axes, bars: pd.DataFrame) -> None:
    if bars.empty:
        style.empty_note(axes, "no training step yet")
        return
    shown = bars.head(MOST_BARS)
    left = pd.Series(0.0, index=shown.index)
    for name, (text, colour) in _PARTS.items():
        width = shown[name].fillna(0.0)
        axes.barh(range(len(shown)), width, left=left, color=colour, height=0.68, label=text)
        left = left + width
    names = [f"{g}  {_short(n)}" for g, n in zip(shown["group"], shown["names"], strict=True)]
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlabel("seconds a training step, mean over seeds")
    rest = f", first {MOST_BARS} of {len(bars)}" if len(bars) > MOST_BARS else ""
    axes.set_title(f"Inside training{rest}")
    axes.grid(axis="y", visible=False)


def _short(names: str) -> str:
    return names.replace("tau=", "τ ")
