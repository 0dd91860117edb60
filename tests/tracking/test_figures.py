"""The picture of an acceptance histogram."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.acceptance.histogram import EDGES, AcceptanceHistogram
from sparrow_lab.tracking.figures import CELLS, acceptance_figure, classes, png, position
from tests.tracking.simulate import histogram


def pixels(h: AcceptanceHistogram, tau: float | None = None) -> np.ndarray:
    from PIL import Image

    picture = Image.open(io.BytesIO(png(acceptance_figure(h, "train tau=0.86   step 3", tau))))
    return np.asarray(picture.convert("RGB"))


def test_the_axis_gives_the_tail_room() -> None:
    assert position(0.0) == 0
    assert position(0.9) == pytest.approx(1)
    assert position(0.999) == pytest.approx(3)
    assert position(1.0) == position(0.99999) == pytest.approx(4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_no_token_is_lost_between_bins_and_classes(values: list[float]) -> None:
    h = AcceptanceHistogram.empty(16).add(np.full(len(values), 20), np.array(values))
    edges, tokens = classes(h.counts)
    assert tokens.shape == (len(h.counts), CELLS)
    assert tokens.sum() == pytest.approx(len(values))
    assert (tokens >= -1e-9).all()
    assert len(edges) == CELLS + 1


def test_a_class_holds_the_tokens_of_its_range() -> None:
    h = AcceptanceHistogram.empty(16).add(np.array([5, 5, 5]), np.array([0.05, 0.95005, 1.0]))
    edges, tokens = classes(h.counts.sum(axis=0))
    where = [int(np.searchsorted(edges, position(a), side="right")) - 1 for a in (0.0505, 0.9505)]
    assert tokens[where[0]] == pytest.approx(1)
    assert tokens[where[1]] == pytest.approx(1, abs=1e-6)
    assert tokens[-1] == pytest.approx(1)
    assert len(EDGES) > CELLS


def test_a_picture_shows_percentiles_and_tau() -> None:
    h = histogram(3, 0.1)
    plain, with_tau = pixels(h), pixels(h, 0.86)
    assert plain.shape == (506, 1210, 3)
    assert (plain != with_tau).any(axis=2).sum() > 300, "tau is drawn"
    red = (np.abs(plain.astype(int) - np.array([214, 39, 40])).sum(axis=2) < 12).sum()
    assert red > 300, "p5 is drawn"


@pytest.mark.parametrize(
    "h",
    [
        AcceptanceHistogram.empty(16),
        AcceptanceHistogram.empty(16).add(np.array([5]), np.array([1.0])),
        AcceptanceHistogram.empty(16).add(np.array([5, 900]), np.array([0.0, 0.0])),
        AcceptanceHistogram.empty(2000, estimator="top_k", top_k=20).add(
            np.array([5, 9000]), np.array([0.3, 1.0]), kept_mass=np.array([0.9, 1.0])
        ),
    ],
    ids=["empty", "one token", "all rejected", "a gap, top-k"],
)
def test_odd_histograms_are_drawn(h: AcceptanceHistogram) -> None:
    assert pixels(h).std() > 1


def test_drawing_leaves_pyplot_alone() -> None:
    before = "matplotlib.pyplot" in sys.modules
    pixels(histogram(1, 0.1))
    assert ("matplotlib.pyplot" in sys.modules) == before
