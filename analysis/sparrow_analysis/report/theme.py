"""Figures inside the page: SVG whose colours follow the reader's light or dark theme."""

from __future__ import annotations

import io
import re

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from sparrow_analysis.figures.style import PAPER, styled

ENLARGED = 1.22
"""On a screen figures are this much larger than on paper."""

DARK_GROUND = "16191d"
"""The page's own dark ground, see page.css."""

_PAINT = re.compile(r"(fill|stroke|stop-color): ?#([0-9a-fA-F]{6})")
_ID = re.compile(r' id="([^"]+)"')
_REFERENCE = re.compile(r'(?:(?<=url\()|(?<=href="))#([^)"]+)')
_TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
_TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def inline_svg(figure: Figure, name: str) -> tuple[str, set[str]]:
    """The figure as an `<svg>` element for an HTML page, and the colours (hex) it uses.

    Colours become CSS variables `--c-<hex>`, see `colour_rules`. `name` keeps the ids inside the
    element apart from those of other figures; the same figure gives the same text.
    """
    with styled(), mpl.rc_context({"svg.hashsalt": name}):
        settle(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    used = {match[2].lower() for match in _PAINT.finditer(text)}
    text = _PAINT.sub(lambda m: f"{m[1]}: var(--c-{m[2].lower()})", text)
    width = re.search(r'<svg[^>]* width="([0-9.]+)pt"', text)
    pixels = float(width[1]) * 96 / 72 * ENLARGED if width else 900.0
    text = _renamed(text, name)
    head, rest = text.split(">", 1)
    head = re.sub(r' (width|height)="[0-9.]+pt"', "", head)
    head += f' style="width: {pixels:.0f}px" aria-hidden="true"'
    return f"{head}>{rest}", used


def _renamed(text: str, name: str) -> str:
    """Number the ids that something refers to, and drop the others: unique in the whole page."""
    used = dict.fromkeys(_REFERENCE.findall(text))
    new = {old: f"{name}.{i}" for i, old in enumerate(used)}
    text = _ID.sub(lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", text)
    return _REFERENCE.sub(lambda m: f"#{new[m[1]]}", text)


def settle(figure: Figure) -> None:
    """Lay the figure out once; saving would do so twice each time, and it is most of the work."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine("none")


def png(figure: Figure) -> bytes:
    """The figure on white, for papers and slides."""
    with styled():
        stream = io.BytesIO()
        settle(figure)
        figure.savefig(stream, format="png", dpi=160, metadata={"Software": None})
    return stream.getvalue()


def colour_rules(used: set[str]) -> str:
    """CSS that gives every colour its value on light ground, and another one on dark ground."""
    light = "".join(f"--c-{c}:#{c};" for c in sorted(used))
    dark = "".join(f"--c-{c}:#{darkened(c)};" for c in sorted(used))
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}"


def darkened(colour: str) -> str:
    """The counterpart of a hex colour on dark ground: same hue, lightness mirrored.

    White becomes the page's ground, ink a light grey; colours in the middle of the scale
    change little, so that a hue keeps its meaning. Lightness is OKLab's.
    """
    if colour.lower() == PAPER.removeprefix("#"):
        return DARK_GROUND
    rgb = np.array([int(colour[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    lab = _TO_LAB @ np.cbrt(_TO_LMS @ linear)
    chroma = float(np.hypot(lab[1], lab[2]))
    mirrored = 1.09 - 0.895 * lab[0]
    # a saturated colour only has to be light enough, not turned over
    weight = min(chroma / 0.12, 1.0)
    lab[0] = (1 - weight) * mirrored + weight * max(lab[0], 0.66)
    back = np.linalg.inv(_TO_LMS) @ (np.linalg.inv(_TO_LAB) @ lab) ** 3
    back = np.clip(back, 0, 1)
    srgb = np.where(back <= 0.0031308, 12.92 * back, 1.055 * back ** (1 / 2.4) - 0.055)
    return "".join(f"{round(float(x) * 255):02x}" for x in srgb)
