"""Counts of acceptance: percentiles against numpy, merging, and the way through Arrow."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.acceptance.histogram import (
    ACCEPTANCE_BINS,
    EDGES,
    AcceptanceHistogram,
    acceptance_bin,
    percentile_of_counts,
)

values = st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.001, 0.86, 0.99, 0.999, 1 - 1e-9])
quantiles = st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.5, 0.9, 1.0]) | st.floats(0, 1)


def width_at(x: float) -> float:
    """Width of the acceptance bin that holds x, with room for rounding."""
    i = int(acceptance_bin(np.array([x]))[0])
    return float(EDGES[i + 1] - EDGES[i]) + 1e-12


def of(alpha: Any, lengths: Any = 1, bin_width: int = 16, **settings_: Any) -> AcceptanceHistogram:
    alpha = np.atleast_1d(np.asarray(alpha, np.float64))
    lengths = np.broadcast_to(np.asarray(lengths), alpha.shape)
    return AcceptanceHistogram.empty(bin_width, **settings_).add(lengths, alpha)


@st.composite
def histograms(draw: st.DrawFn, bin_width: int = 8) -> AcceptanceHistogram:
    n = draw(st.integers(0, 12))
    alpha = draw(st.lists(values, min_size=n, max_size=n))
    lengths = draw(st.lists(st.integers(1, 60), min_size=n, max_size=n))
    prompts = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    empty = AcceptanceHistogram.empty(bin_width)
    return empty.add(np.array(lengths), np.array(alpha), np.array(prompts))


def same(a: AcceptanceHistogram, b: AcceptanceHistogram) -> bool:
    settings_ = ("bin_width", "estimator", "top_k", "temperature", "ceiling_p05")
    return (
        all(getattr(a, name) == getattr(b, name) for name in settings_)
        and np.array_equal(a.counts, b.counts)
        and np.array_equal(a.prompts, b.prompts)
        and np.allclose(a.sums, b.sums, rtol=1e-12, atol=0)
        and math.isclose(a.kept_mass, b.kept_mass, rel_tol=1e-12)
    )


# ------------------------------------------------------------------ bins
def test_edges_rise_from_0_to_1_and_are_finer_near_1() -> None:
    widths = np.diff(EDGES)
    assert EDGES[0] == 0 and EDGES[-1] == 1 and (widths > 0).all()
    assert widths.max() <= 0.001 + 1e-12
    assert widths[EDGES[:-1] >= 0.99].max() <= 1e-4 + 1e-12
    assert widths[EDGES[:-1] >= 0.999].max() <= 1e-5 + 1e-12


@given(x=values)
def test_every_value_lies_in_its_bin(x: float) -> None:
    i = int(acceptance_bin(np.array([x]))[0])
    assert EDGES[i] <= x <= EDGES[i + 1]
    assert x < EDGES[i + 1] or i == ACCEPTANCE_BINS - 1


def test_rounding_beyond_the_ends_is_clipped() -> None:
    assert acceptance_bin(np.array([-1e-7, 1 + 1e-7])).tolist() == [0, ACCEPTANCE_BINS - 1]


@pytest.mark.parametrize("where", [0, 1, 4])
def test_nan_is_refused(where: int) -> None:
    alpha = np.full(5, 0.5)
    alpha[where] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        of(alpha)


# ------------------------------------------------------------------ percentiles and means
@settings(max_examples=200)
@given(alpha=st.lists(values, min_size=1, max_size=60), q=quantiles)
def test_percentile_is_numpys_within_a_bin(alpha: list[float], q: float) -> None:
    exact = float(np.quantile(alpha, q, method="inverted_cdf"))
    assert abs(of(alpha).percentile(q) - exact) <= width_at(exact)


@given(alpha=st.lists(values, min_size=1, max_size=40), q=st.lists(quantiles, min_size=2))
def test_percentiles_rise_with_q(alpha: list[float], q: list[float]) -> None:
    histogram = of(alpha)
    found = [histogram.percentile(x) for x in sorted(q)]
    assert found == sorted(found)
    assert all(0 <= x <= 1 for x in found)


@settings(max_examples=60)
@given(alpha=st.lists(values, min_size=1, max_size=60))
def test_means_are_exact(alpha: list[float]) -> None:
    assert of(alpha).mean() == pytest.approx(math.fsum(alpha) / len(alpha), rel=1e-12)


def test_percentiles_and_means_of_single_bins_and_slices() -> None:
    rng = np.random.default_rng(0)
    alpha, lengths = rng.beta(8, 1, 4000), rng.integers(1, 64, 4000)
    histogram = of(alpha, lengths)
    assert histogram.bin_starts() == [0, 16, 32, 48]
    for i in range(4):
        mine = alpha[lengths // 16 == i]
        assert histogram.tokens(i) == len(mine)
        exact = float(np.quantile(mine, 0.05, method="inverted_cdf"))
        assert histogram.percentile(0.05, i) == pytest.approx(exact, abs=0.001)
        assert histogram.mean(i) == pytest.approx(mine.mean(), rel=1e-12)
    late = alpha[lengths >= 32]
    assert histogram.tokens(slice(2, None)) == len(late)
    assert histogram.mean(slice(2, None)) == pytest.approx(late.mean(), rel=1e-12)


def test_nothing_counted_is_nan_and_not_a_number_to_trust() -> None:
    empty = AcceptanceHistogram.empty(16)
    assert empty.tokens() == 0 and empty.bin_starts() == []
    assert math.isnan(empty.percentile(0.05)) and math.isnan(empty.mean())
    gap = of([0.5, 0.6], [3, 40])
    assert math.isnan(gap.percentile(0.05, 1)) and math.isnan(gap.mean(1)) and gap.tokens(1) == 0
    assert math.isnan(percentile_of_counts(np.zeros(ACCEPTANCE_BINS, np.int64), 0.5))


def test_padding_cannot_enter() -> None:
    """The 5th percentile over a padded tensor would be 0: only what is passed is counted."""
    rng = np.random.default_rng(1)
    alpha_NT = 0.88 + 0.1 * rng.random((8, 50))
    valid_NT = np.arange(50) < rng.integers(5, 50, 8)[:, None]
    padded_NT = np.where(valid_NT, alpha_NT, 0.0)
    lengths_NT = np.broadcast_to(20 + np.arange(50), (8, 50))
    histogram = of(padded_NT[valid_NT], lengths_NT[valid_NT])
    exact = np.quantile(alpha_NT[valid_NT], 0.05, method="inverted_cdf")
    assert histogram.percentile(0.05) == pytest.approx(exact, abs=0.001)
    assert np.quantile(padded_NT, 0.05) == 0.0
    assert histogram.tokens() == valid_NT.sum()
    marked_NT = np.where(valid_NT, alpha_NT, np.nan)
    with pytest.raises(ValueError, match="NaN"):
        of(marked_NT.ravel(), lengths_NT.ravel())


# ------------------------------------------------------------------ adding and merging
@settings(max_examples=60)
@given(a=histograms(), b=histograms(), c=histograms())
def test_merging_is_associative_and_commutative(
    a: AcceptanceHistogram, b: AcceptanceHistogram, c: AcceptanceHistogram
) -> None:
    assert same(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert same(a.merge(b), b.merge(a))
    assert same(a.merge(AcceptanceHistogram.empty(8)), a)


@settings(max_examples=40)
@given(data=st.data(), parts=st.integers(1, 4))
def test_tokens_added_in_parts_are_the_whole(data: st.DataObject, parts: int) -> None:
    n = data.draw(st.integers(0, 30))
    alpha: npt.NDArray[Any] = np.array(data.draw(st.lists(values, min_size=n, max_size=n)))
    lengths = np.array(data.draw(st.lists(st.integers(1, 99), min_size=n, max_size=n)), np.int64)
    whole = AcceptanceHistogram.empty(7).add(lengths, alpha)
    pieces = [
        AcceptanceHistogram.empty(7).add(lengths[i::parts], alpha[i::parts]) for i in range(parts)
    ]
    assert same(reduce(AcceptanceHistogram.merge, pieces), whole)


def test_prompts_are_counted_once_a_bin_and_add_up_over_merges() -> None:
    lengths = np.array([3, 4, 5, 20, 21])
    one = AcceptanceHistogram.empty(16).add(lengths, np.full(5, 0.5), np.array([0, 0, 1, 1, 1]))
    assert one.prompts.tolist() == [2, 1]
    assert one.merge(one).prompts.tolist() == [4, 2]


@pytest.mark.parametrize(
    ("settings_", "name"),
    [
        ({"bin_width": 8}, "bin_width"),
        ({"estimator": "top_k", "top_k": 20}, "estimator"),
        ({"temperature": 0.6}, "temperature"),
    ],
)
def test_counts_that_do_not_add_are_refused(settings_: dict[str, Any], name: str) -> None:
    other = AcceptanceHistogram.empty(**{"bin_width": 16, **settings_})
    with pytest.raises(ValueError, match=name):
        of([0.5]).merge(other)


def test_top_k_of_another_k_is_refused() -> None:
    twenty, forty = (AcceptanceHistogram.empty(16, estimator="top_k", top_k=k) for k in (20, 40))
    with pytest.raises(ValueError, match="top_k: 20 and 40"):
        twenty.merge(forty)


def test_lengths_and_values_must_pair_up() -> None:
    with pytest.raises(ValueError, match="2 lengths for 3"):
        AcceptanceHistogram.empty(16).add(np.array([1, 2]), np.array([0.1, 0.2, 0.3]))


@pytest.mark.parametrize("lengths", [[-1, 3], [-40, -40]])
def test_a_negative_length_is_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="negative"):
        AcceptanceHistogram.empty(16).add(np.array(lengths), np.array([0.1, 0.2]))


def test_a_bin_width_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="bin width"):
        AcceptanceHistogram.empty(0)


# ------------------------------------------------------------------ through Arrow
@settings(max_examples=40)
@given(histogram=histograms())
def test_a_table_brings_everything_back(histogram: AcceptanceHistogram) -> None:
    table = histogram.to_table(3)
    assert set(table.column("step").to_pylist()) <= {3}
    assert same(AcceptanceHistogram.from_table(table), histogram)


def test_settings_survive_the_table_and_the_disk() -> None:
    import pyarrow.parquet as pq

    settings_ = {"estimator": "top_k", "top_k": 20, "temperature": 0.6, "ceiling_p05": 0.997}
    empty = AcceptanceHistogram.empty(16, **settings_)
    made = empty.add(
        np.array([5, 40]), np.array([0.25, 0.75]), np.array([0, 1]), np.array([0.9, 0.8])
    )
    assert made.kept_mass == pytest.approx(1.7)
    sink = pa.BufferOutputStream()
    pq.write_table(made.to_table(12), sink)
    back = AcceptanceHistogram.from_table(pq.read_table(pa.BufferReader(sink.getvalue())))
    assert same(back, made)
    assert back.mean() == 0.5


def test_a_table_without_settings_or_of_several_steps_is_refused() -> None:
    table = of([0.5, 0.6]).to_table(1)
    with pytest.raises(ValueError, match="metadata"):
        AcceptanceHistogram.from_table(table.replace_schema_metadata({}))
    two = pa.concat_tables([table, of([0.5]).to_table(2)])
    with pytest.raises(ValueError, match=r"one step at a time, not \[1, 2\]"):
        AcceptanceHistogram.from_table(two)
