from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sparrow_lab.acceptance.histogram import ACCEPTANCE_BINS, acceptance_bin, percentile_of_counts
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.curve import (
    Curve,
    bootstrap_quantiles,
    curve_rows,
    pooled_row,
    quantiles,
)
from sparrow_lab.sparsity.schedule import DENSE


def counted(acceptance: list[list[np.ndarray]]) -> np.ndarray:
    """Counts [prompts, bins, acceptance bins] of acceptance[prompt][bin]."""
    counts = np.zeros((len(acceptance), len(acceptance[0]), ACCEPTANCE_BINS), np.int64)
    for i, prompt in enumerate(acceptance):
        for j, values in enumerate(prompt):
            np.add.at(counts[i, j], acceptance_bin(np.asarray(values, float)), 1)
    return counts


def simulated(rng: np.random.Generator, p05: float, prompts: int, tokens: int) -> np.ndarray:
    """One bin whose true 5th percentile is p05, with prompts that differ from each other.

    Uniform on [1 - w, 1] has its 5th percentile at 1 - 0.95 w. A prompt draws all its tokens from
    one tenth of that range with probability one half, so its tokens are not independent.
    """
    width = (1 - p05) / 0.95
    rows = []
    for _ in range(prompts):
        u = rng.random(tokens)
        if rng.random() < 0.5:
            u = (rng.integers(10) + u) / 10
        rows.append([1 - width * u])
    return counted(rows)


@given(
    hnp.arrays(np.int64, (3, ACCEPTANCE_BINS), elements=st.integers(0, 3), fill=st.just(0)),
    st.floats(0, 1),
)
@settings(max_examples=50)
def test_quantiles_agree_with_the_histogram_of_one_row(counts: np.ndarray, q: float) -> None:
    expected = [percentile_of_counts(row, q) for row in counts]
    np.testing.assert_array_equal(quantiles(counts, q), expected)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.sampled_from([0.01, 0.05, 0.5]))
def test_quantiles_are_numpys_order_statistic_to_a_bin(values: list[float], q: float) -> None:
    counts = counted([[np.array(values)]])[0, 0]
    exact = np.quantile(values, q, method="inverted_cdf")
    assert abs(float(quantiles(counts, q)) - exact) <= 0.001 + 1e-9


def test_quantiles_of_nothing_are_nan() -> None:
    assert np.isnan(quantiles(np.zeros((2, ACCEPTANCE_BINS), np.int64), 0.05)).all()
    assert quantiles(np.zeros((0, ACCEPTANCE_BINS), np.int64), 0.05).shape == (0,)


def test_rows_hold_what_curve_json_asks_for() -> None:
    rng = np.random.default_rng(0)
    values = [[rng.random(40), rng.random(30)], [rng.random(20), np.array([])]]
    counts = counted(values)
    exact = np.array([np.concatenate([v[j] for v in values]).sum() for j in range(2)])
    rows = curve_rows(counts, 16, bootstrap=50, seed=1, sums=exact)
    keys = {"bin_start", "prompts", "tokens", "p01", "p05", "p10", "p50", "mean"}
    assert all(set(r) == keys | {"p05_low", "p05_high"} for r in rows)
    assert [(r["bin_start"], r["prompts"], r["tokens"]) for r in rows] == [(0, 2, 60), (16, 1, 30)]
    assert rows[0]["mean"] == pytest.approx(exact[0] / 60, rel=1e-12)
    assert rows[0]["p01"] <= rows[0]["p05"] <= rows[0]["p10"] <= rows[0]["p50"]
    assert rows[0]["p05_low"] <= rows[0]["p05"] <= rows[0]["p05_high"]
    assert curve_rows(counts, 16, bootstrap=50, seed=1)[0]["mean"] == pytest.approx(
        rows[0]["mean"], abs=5e-4
    )


def test_bins_with_too_few_prompts_are_left_out() -> None:
    one, none = np.full(5, 0.9), np.array([])
    counts = counted([[one, one, none], [one, none, none]])
    assert [r["bin_start"] for r in curve_rows(counts, 8, min_prompts=1, bootstrap=0)] == [0, 8]
    assert [r["bin_start"] for r in curve_rows(counts, 8, min_prompts=2, bootstrap=0)] == [0]
    assert curve_rows(counts, 8, min_prompts=3) == []
    assert curve_rows(counts[:0], 8) == []


def test_without_resamples_the_interval_is_null() -> None:
    (row,) = curve_rows(counted([[np.full(5, 0.9)]]), 8, bootstrap=0)
    assert row["p05_low"] is None and row["p05_high"] is None


def test_pooled_row_weighs_tokens_over_all_bins() -> None:
    counts = counted([[np.full(90, 0.95), np.full(10, 0.1)], [np.full(90, 0.95), np.full(10, 0.1)]])
    row = pooled_row(counts, bootstrap=20)
    assert row["tokens"] == 200 and row["prompts"] == 2 and "bin_start" not in row
    assert row["p05"] == pytest.approx(0.1, abs=1e-3)
    assert row["p50"] == pytest.approx(0.95, abs=1e-3)
    assert pooled_row(counts, sums=np.array([171.0, 2.0]))["mean"] == pytest.approx(173 / 200)


def test_no_tokens_are_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no valid tokens"):
        pooled_row(np.zeros((2, 3, ACCEPTANCE_BINS), np.int64))
    with pytest.raises(ValueError, match="counts must be"):
        curve_rows(np.zeros((2, 3, 7), np.int64), 16)


def test_the_bootstrap_is_seeded_and_paired_over_budgets() -> None:
    counts = simulated(np.random.default_rng(3), 0.8, 30, 40)
    first = bootstrap_quantiles(counts, 0.05, 100, 0.95, seed=5)
    again = bootstrap_quantiles(counts, 0.05, 100, 0.95, seed=5)
    other = bootstrap_quantiles(counts, 0.05, 100, 0.95, seed=6)
    assert first == again and first != other


def test_one_prompt_has_no_spread_and_an_empty_bin_none_at_all() -> None:
    counts = counted([[np.linspace(0.5, 1, 50), np.array([])]])
    low, high = bootstrap_quantiles(counts, 0.05, 20, 0.95, seed=0)
    assert low[0] == high[0] and np.isnan(low[1]) and np.isnan(high[1])


def test_resampling_is_over_prompts_not_tokens() -> None:
    # Two kinds of prompt, all tokens of a prompt alike: tokens would give a needle.
    counts = counted([[np.full(200, 0.3 if i % 4 == 0 else 0.9)] for i in range(16)])
    low, high = bootstrap_quantiles(counts, 0.25, 400, 0.95, seed=0)
    assert low[0] < 0.31 and high[0] > 0.89


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(11)
    hits = 0
    for trial in range(120):
        counts = simulated(rng, 0.8, 48, 30)
        low, high = bootstrap_quantiles(counts, 0.05, 150, 0.95, seed=trial)
        hits += bool(low[0] <= 0.8 <= high[0])
    assert 0.87 <= hits / 120 <= 1


def curve_json(**changes: Any) -> dict[str, Any]:
    row = {"trajectory": "own", "budget": 64, "bin_start": 0, "prompts": 9, "tokens": 99}
    row |= {"p05": 0.8, "p05_low": 0.7, "p05_high": 0.9, "mean": 0.95}
    rows = [
        row,
        {**row, "budget": 128, "bin_start": 16, "p05": 0.9, "p05_low": None, "p05_high": None},
        {**row, "trajectory": "dense", "budget": None, "p05": 1.0},
    ]
    return {"schema": 1, "page_size": 16, "bin_width": 16, "rows": rows, **changes}


def test_reading_a_curve() -> None:
    curve = Curve.from_json(curve_json())
    assert curve.budgets.tolist() == [64, 128] and curve.bin_starts.tolist() == [0, 16]
    np.testing.assert_array_equal(curve.value, [[0.8, np.nan], [np.nan, 0.9]])
    np.testing.assert_array_equal(curve.low, [[0.7, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(curve.prompts, [[9, 0], [0, 9]])
    dense = Curve.from_json(curve_json(), trajectory="dense")
    assert dense.budgets.tolist() == [DENSE]
    only_dense = curve_json(rows=curve_json()["rows"][2:])
    assert Curve.from_json(only_dense).budgets.tolist() == [DENSE]
    mean = Curve.from_json(curve_json(), statistic="mean")
    assert mean.value[0, 0] == 0.95 and np.isnan(mean.low).all()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "the key 'schema' is missing"),
        (curve_json(schema=3), "schema 3 is unknown"),
        (curve_json(rows=[]), "no row of the trajectory 'own'"),
        (curve_json(rows=[{"trajectory": "own"}]), "the key 'budget' is missing"),
        (curve_json(rows=3), "not a calibration curve"),
        (curve_json(page_size="x"), "not a calibration curve"),
        (curve_json(rows=curve_json()["rows"][:1] * 2), "two rows for budget 64 and bin 0"),
        ([], "not a calibration curve"),
    ],
)
def test_bad_curves_are_the_users_to_mend(data: Any, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Curve.from_json(data, where="c.json")
    assert says in str(caught.value) and str(caught.value).startswith("c.json: ")
