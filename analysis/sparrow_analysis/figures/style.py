"""How every figure looks: type, colours that colour-blind readers can tell apart, direct labels.

Figures are made without pyplot, so no state is shared and no window opens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, MUTED, FAINT, PAPER = "#1b1f24", "#6b7280", "#d9dde3", "#ffffff"

VERDICT_COLOURS = {
    "collapsed": "#d55e00",
    "stable": "#0072b2",
    "stagnated": "#56b4e9",
    "censored": "#8a8f98",
    "unknown": "#8a8f98",
    "waiting": "#8a8f98",
}
"""Also told apart by marker: filled for collapsed, hollow for the rest, a cross for censored."""

PARTS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7b6fd0", "#8c6d31")
"""Okabe and Ito's colours, less the yellow, which is lost on white; for page sizes and the like."""
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")

_LOW, _MIDDLE, _HIGH = (0xC2, 0x4A, 0x0A), (0x8E, 0x5A, 0x8A), (0x0B, 0x4F, 0x9C)

RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # ships with matplotlib: the same everywhere
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 7.0,
    "axes.labelsize": 9.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.4,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "axes.unicode_minus": True,
}


@contextmanager
def styled() -> Iterator[None]:
    """Use the style inside a `with` block; also needed where a figure is saved."""
    with mpl.rc_context(RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches, laid out so that labels do not collide."""
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.06, h_pad=0.06, wspace=0.04, hspace=0.05)  # type: ignore[call-arg]
    return figure


def ramp(values: Sequence[float]) -> list[str]:
    """Colours for ordered levels, lowest first: from orange over purple to blue.

    By rank, so that levels close together can be told apart; equal values share a colour. NaN
    takes ink (full attention).
    """
    known = sorted({v for v in values if not math.isnan(v)})
    place = {v: i / max(len(known) - 1, 1) for i, v in enumerate(known)}
    return [INK if math.isnan(v) else _between(place[v]) for v in values]


def _between(t: float) -> str:
    a, b, s = (_LOW, _MIDDLE, 2 * t) if t < 0.5 else (_MIDDLE, _HIGH, 2 * t - 1)
    return "#" + "".join(f"{round(x + (y - x) * s):02x}" for x, y in zip(a, b, strict=True))


def part_styles(parts: Sequence[object]) -> dict[object, tuple[str, str]]:
    """Colour and marker of each part (page size, setting), in order of first appearance."""
    distinct = list(dict.fromkeys(parts))
    return {p: (PARTS[i % len(PARTS)], MARKERS[i % len(MARKERS)]) for i, p in enumerate(distinct)}


def stretch_near_one(axes: Axes) -> None:
    """Spread out the x axis towards 1, where the levels that matter may lie close together."""
    axes.set_xscale(
        "function",
        functions=(lambda x: -np.log(1.02 - np.minimum(x, 1.01)), lambda y: 1.02 - np.exp(-y)),
    )
    ticks = [0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0]
    axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axes.minorticks_off()


def label_height(axes: Axes, height: float, size: float = 7.5) -> float:
    """How far apart labels must lie not to overlap, in units of y; `height` in inches."""
    low, high = axes.get_ylim()
    return 1.25 * size / 72 / max(0.8 * height, 0.5) * (high - low)


def label_ends(
    axes: Axes,
    labels: Sequence[tuple[float, float, str, str]],
    height: float,
    size: float = 7.5,
    sort: bool = True,
) -> None:
    """Write (x, y, text, colour) beside the ends of lines, moved apart so that none overlap.

    Call it when the limits of y are final. `height` is that of the panel, in inches. `sort=False`
    keeps the order of `labels`, lowest first; else it is that of y.
    """
    known = [item for item in labels if math.isfinite(item[0]) and math.isfinite(item[1])]
    if not known:
        return
    low, high = axes.get_ylim()
    least = label_height(axes, height, size)
    order = list(range(len(known)))
    if sort:
        order.sort(key=lambda i: known[i][1])
    at = [min(max(known[i][1], low), high) for i in order]
    for i in range(1, len(at)):
        at[i] = max(at[i], at[i - 1] + least)
    over = at[-1] - high
    if over > 0:
        at[-1] -= over
        for i in range(len(at) - 2, -1, -1):
            at[i] = min(at[i], at[i + 1] - least)
    for place, i in zip(at, order, strict=True):
        x, _, text, colour = known[i]
        axes.annotate(
            text,
            (x, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            ha="left",
            color=colour,
            fontsize=size,
            annotation_clip=False,
        )


def empty_note(axes: Axes, text: str) -> None:
    """Say in an empty panel why it is empty."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, transform=axes.transAxes)


def short_budget(budget: float) -> str:
    """`dense`, `768`, `4k`, `1.5k`: a budget in tokens."""
    if math.isnan(budget):
        return "dense"
    if budget >= 1024 and budget % 512 == 0:
        return f"{budget / 1024:g}k"
    return f"{budget:.0f}"


def page_text(size: object) -> str:
    """`page 8`, or `dense` where there is no page size."""
    return f"page {size}" if isinstance(size, (int, np.integer)) else "dense"


def jitter(count: int, width: float) -> np.ndarray:
    """Even offsets that keep `count` marks of one place apart, centred on 0."""
    return (np.arange(count) - (count - 1) / 2) * (width / max(count - 1, 1) if count > 1 else 0)
