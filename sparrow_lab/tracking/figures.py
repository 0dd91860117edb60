"""The picture of one acceptance histogram: where the tail lies, and where along the length.

The axis is 1 - acceptance on a log scale, drawn so that agreement is on the right (top): most
tokens agree to three digits, and a linear axis would show one spike. Needs matplotlib.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparrow_lab.acceptance.histogram import EDGES, AcceptanceHistogram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEAREST = 1e-4
"""Closer to 1 than this is drawn in the last class: the tail needs the room."""
MARKS = {"p1": 0.01, "p5": 0.05, "p10": 0.10, "p50": 0.50}
COLOURS = {"p1": "#7a0403", "p5": "#d62728", "p10": "#e08a1e", "p50": "#2a6f97"}
TAU_LINE: dict[str, Any] = {"color": "black", "linewidth": 1.2, "linestyle": (0, (4, 3))}
TICKS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
CELLS = 40
"""Classes of the picture: the fine bins are joined so that a class is wide enough to see."""

Floats = npt.NDArray[np.float64]


def acceptance_figure(
    histogram: AcceptanceHistogram, title: str, tau: float | None = None
) -> Figure:
    """Left: share of tokens by acceptance. Right: the same in each length bin, with its p5.

    An empty histogram gives a figure that says so. `tau` is drawn as a line when given.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), dpi=110)
    figure.text(0.012, 0.985, f"{title}\n{_facts(histogram)}", fontsize=10.5, va="top")
    if not histogram.tokens():
        axes = figure.subplots()
        axes.text(0.5, 0.5, "no tokens were counted", ha="center", va="center", fontsize=14)
        axes.set_axis_off()
        return figure
    # Fixed places: matplotlib's own layout takes as long as the drawing.
    shares = figure.add_axes((0.062, 0.115, 0.385, 0.695))
    by_length = figure.add_axes((0.52, 0.115, 0.39, 0.58))
    counts = figure.add_axes((0.52, 0.725, 0.39, 0.13), sharex=by_length)
    scale = figure.add_axes((0.92, 0.115, 0.012, 0.58))
    _draw_shares(shares, histogram, tau)
    _draw_lengths(figure, by_length, scale, histogram, tau)
    _draw_tokens(counts, histogram)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as PNG, without a display and without pyplot's global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sink = io.BytesIO()
    FigureCanvasAgg(figure).print_png(sink)
    return sink.getvalue()


def position(acceptance: float | Floats) -> Any:
    """Acceptance -> place on the axis: -log10(1 - acceptance), 0 for 0 and 4 at `NEAREST`."""
    return -np.log10(np.clip(1.0 - np.asarray(acceptance, np.float64), NEAREST, 1.0))


def classes(counts: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """(edges in axis position [CELLS + 1], tokens a class [..., CELLS]) of counts [..., bins].

    A bin that crosses a class edge is split by its length on the axis, so no token is lost.
    """
    edges = np.linspace(0.0, float(position(1.0)), CELLS + 1)
    cumulative = np.concatenate(
        [np.zeros((*counts.shape[:-1], 1)), np.cumsum(counts, axis=-1)], axis=-1
    )
    places = position(EDGES)
    places[-1] = (
        edges[-1] + 1e-9
    )  # the last bin reaches acceptance 1: it is drawn in the last class
    flat = cumulative.reshape(-1, cumulative.shape[-1])
    at_edges = np.stack([np.interp(edges, places, row) for row in flat])
    at_edges[:, -1] = flat[:, -1]
    return edges, np.diff(at_edges, axis=-1).reshape(*counts.shape[:-1], CELLS)


def _facts(histogram: AcceptanceHistogram) -> str:
    """One line: how many tokens, their mean, and how acceptance was estimated."""
    tokens = histogram.tokens()
    if not tokens:
        return "0 tokens"
    estimator = "exact"
    if histogram.estimator == "top_k":
        kept = histogram.kept_mass / tokens
        estimator = f"top-{histogram.top_k} estimate, kept mass {kept:.4f}"
    facts = [f"{tokens:,} tokens", f"mean {histogram.mean():.4f}", estimator]
    facts.append(f"temperature {histogram.temperature:g}")
    if histogram.ceiling_p05 is not None:
        facts.append(f"ceiling p5 {histogram.ceiling_p05:.4f}")
    return "   ".join(facts)


def _draw_shares(axes: Axes, histogram: AcceptanceHistogram, tau: float | None) -> None:
    edges, tokens = classes(histogram.counts.sum(axis=0))
    share = tokens / tokens.sum()
    axes.stairs(share, edges, fill=True, color="#b5c9d6")
    axes.stairs(share, edges, color="#2a6f97", linewidth=0.9)
    for name, q in MARKS.items():
        value = histogram.percentile(q)
        axes.axvline(
            position(value), color=COLOURS[name], linewidth=1.6, label=f"{name}  {value:.4f}"
        )
    if tau is not None:
        axes.axvline(position(tau), **TAU_LINE, label=f"tau  {tau:g}")
    low = 10.0 ** np.floor(np.log10(share[share > 0].min()))
    axes.set_yscale("log")
    axes.minorticks_off()  # drawing the minor ticks of log axes takes most of a picture's time
    axes.set_ylim(min(max(low, 1e-6), 1e-3), 1.2)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        fontsize=8.5,
        ncols=5,
        frameon=False,
        handlelength=0.9,
        handletextpad=0.4,
        columnspacing=1.1,
    )
    _acceptance_ticks(axes, "x")
    axes.set_xlabel("acceptance")
    axes.set_ylabel("share of tokens (log)")


def _draw_lengths(
    figure: Figure, axes: Axes, scale: Axes, histogram: AcceptanceHistogram, tau: float | None
) -> None:
    from matplotlib.colors import LogNorm

    used, starts, width = _used_bins(histogram)
    edges, tokens = classes(histogram.counts[used[0] : used[-1] + 1])
    totals = tokens.sum(axis=1, keepdims=True)
    share = np.divide(tokens, totals, out=np.zeros_like(tokens), where=totals > 0)
    lengths = np.append(starts, starts[-1] + width)
    mesh = axes.pcolormesh(
        lengths,
        edges,
        np.ma.masked_less_equal(share.T, 0.0),
        norm=LogNorm(vmin=1e-4, vmax=1.0),
        cmap="Blues",
        rasterized=True,
    )
    figure.colorbar(mesh, cax=scale, label="share of the bin's tokens").minorticks_off()
    for name in ("p50", "p5", "p1"):
        values = np.array([histogram.percentile(MARKS[name], int(i)) for i in used])
        full = np.full(len(starts), np.nan)
        full[used - used[0]] = position(values)
        axes.stairs(full, lengths, baseline=None, color=COLOURS[name], linewidth=1.8, label=name)
    if tau is not None:
        axes.axhline(position(tau), **TAU_LINE, label="tau")
    axes.legend(loc="lower left", fontsize=8, ncols=4, framealpha=0.85)
    _acceptance_ticks(axes, "y")
    axes.set_xlabel("length (prompt + generated tokens)")
    axes.set_ylabel("acceptance")


def _draw_tokens(axes: Axes, histogram: AcceptanceHistogram) -> None:
    used, starts, width = _used_bins(histogram)
    tokens = histogram.counts[used[0] : used[-1] + 1].sum(axis=1)
    axes.stairs(tokens, np.append(starts, starts[-1] + width), fill=True, color="#9db7c9")
    axes.set_ylim(bottom=0)
    axes.set_title("tokens in each length bin", fontsize=8.5, loc="left", pad=3)
    axes.tick_params(labelbottom=False, labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _used_bins(
    histogram: AcceptanceHistogram,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """(bins with tokens, first lengths from the first to the last of them, width of a bin)."""
    used = np.flatnonzero(histogram.counts.sum(axis=1) > 0)
    starts = np.arange(used[0], used[-1] + 1, dtype=np.int64) * histogram.bin_width
    return used, starts, histogram.bin_width


def _acceptance_ticks(axes: Axes, which: str) -> None:
    end = float(position(1.0))
    places = [*(float(position(value)) for value in TICKS), end]
    names = [*(f"{value:g}" for value in TICKS), "1"]
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(places, labels=names, fontsize=8.5)
    (axes.set_xlim if which == "x" else axes.set_ylim)(0.0, end + 0.02)
    axes.grid(axis="x" if which == "x" else "y", color="#dddddd", linewidth=0.6, zorder=0)
    axes.set_axisbelow(True)
