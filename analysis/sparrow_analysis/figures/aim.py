"""Did the schedules hit what they aimed at? Measured p5 beside the nominal tau."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparrow_analysis.figures import style
from sparrow_analysis.frames import records


def aim_figure(schedules: pd.DataFrame, measured: pd.DataFrame) -> Figure:
    """Left: pooled p5 on fresh prompts against tau. Right: by length, as a miss of tau.

    Settings have a colour and a marker each; bars are 95 % intervals.
    """
    aimed = schedules[schedules["tau"].notna() & schedules["p05"].notna()]
    with style.styled():
        figure = style.new_figure(7.4, 3.3)
        if aimed.empty:
            style.empty_note(figure.subplots(), "no schedule with a tau has been measured yet")
            return figure
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
        keys = [_setting(r) for r in records(aimed)]
        look = style.part_styles(keys)
        for row, key in zip(records(aimed), keys, strict=True):
            colour, marker = look[key]
            left.plot(
                [row["tau"]] * 2, [row["p05_low"], row["p05_high"]], color=colour, lw=1, alpha=0.6
            )
            left.scatter([row["tau"]], [row["p05"]], s=24, color=colour, marker=marker, zorder=3)
        low = min(float(aimed["tau"].min()), float(aimed["p05"].min())) - 0.03
        left.plot([0, 1], [0, 1], color=style.MUTED, lw=0.8, ls=(0, (3, 3)), zorder=0)
        left.set_xlim(max(low, 0), 1.01)
        left.set_ylim(max(low, 0), 1.01)
        left.set_xlabel("τ aimed at")
        left.set_ylabel("p5 measured on fresh prompts")
        left.set_title("All lengths together")
        _by_length(right, measured, look)
        handles = [
            left.scatter([], [], s=24, color=colour, marker=marker, label=str(key))
            for key, (colour, marker) in look.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
    return figure


def _by_length(axes: Axes, measured: pd.DataFrame, look: dict[object, tuple[str, str]]) -> None:
    aimed = measured[measured["tau"].notna() & measured["p05"].notna()]
    for _, line in aimed.groupby("schedule_id", sort=False):
        ordered = line.sort_values("bin_start")
        key = _setting(records(ordered)[0])
        colour, marker = look.get(key, (style.MUTED, "o"))
        axes.plot(
            ordered["bin_start"].astype("float64"),
            ordered["p05"] - ordered["tau"],
            color=colour,
            marker=marker,
            ms=3,
            lw=0.9,
            alpha=0.8,
        )
    axes.axhline(0, color=style.MUTED, lw=0.8, ls=(0, (3, 3)), zorder=0)
    reach = float((aimed["p05"] - aimed["tau"]).abs().max()) if len(aimed) else math.nan
    if math.isfinite(reach) and reach > 0:
        axes.set_ylim(-1.1 * reach, 1.1 * reach)
    axes.set_xlabel("length: first token of the bin")
    axes.set_ylabel("measured p5 − τ")
    axes.set_title("By length")


def _setting(row: dict[str, object]) -> str:
    return f"{row['model']} · {style.page_text(row['page_size'])}"
