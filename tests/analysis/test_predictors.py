"""The statistic that really causes collapse must come out ahead, whichever it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sparrow_analysis.predictors import auc, auc_within, best_cut, compare_predictors, transfer
from tests.analysis.outcomes import levels, outcomes
from tests.analysis.simulated import World, ladder, step_at

SETTINGS = [("tiny-s", 4), ("tiny-s", 8), ("tiny-m", 4), ("tiny-m", 8)]


def hidden_share(p05: float, page: int) -> float:
    """A mean that hides the tail more at the larger page: settings differ in how they relate."""
    return 1 - (0.35 if page == 4 else 0.08) * (1 - p05)


def test_where_the_mean_is_the_cause_the_table_says_so() -> None:
    made = levels(SETTINGS, 8, np.random.default_rng(0), low=0.3, mean=hidden_share)
    runs = outcomes(World(made, lambda level: float(level.mean < 0.94)))
    found = compare_predictors(runs)
    assert found.conclusion == "refuted"
    assert "mean" in found.better
    assert found.table["statistic"].iloc[0] == "mean"
    scores = found.table.set_index("statistic")
    assert scores.loc["mean", "auc"] == 1
    assert scores.loc["mean", "transfer"] > scores.loc["p05", "transfer"]


def test_where_the_tail_is_the_cause_the_mean_is_behind_it() -> None:
    found = []
    for seed in (1, 3, 4):
        made = levels(SETTINGS, 8, np.random.default_rng(seed), mean=hidden_share)
        runs = outcomes(World(made, step_at(0.8)))
        found.append(compare_predictors(runs, ["p05", "mean"]))
    assert all(f.table["statistic"].iloc[0] == "p05" for f in found)
    assert all(f.better == () for f in found)
    assert [f.conclusion for f in found].count("supported") >= 2
    assert found[0].left_out == 4


def test_statistics_that_rank_alike_cannot_be_told_apart() -> None:
    made = levels(SETTINGS, 5, np.random.default_rng(2))
    found = compare_predictors(outcomes(World(made, step_at(0.86))))
    assert found.conclusion == "undecided"
    assert set(found.tied) == {"p01", "p10", "p50", "mean"}


@pytest.mark.parametrize("seed", range(4))
def test_noise_supports_and_refutes_nothing(seed: int) -> None:
    made = levels(SETTINGS, 6, np.random.default_rng(seed), mean=hidden_share)
    found = compare_predictors(outcomes(World(made, lambda level: 0.5), seed), ["p05", "mean"])
    assert found.conclusion == "undecided"


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_one_outcome_only_is_not_enough(chance: float) -> None:
    runs = outcomes(World(ladder([0.5, 0.7, 0.9]), lambda level: chance))
    found = compare_predictors(runs)
    assert found.conclusion == "not_enough"
    assert found.table.empty


def test_two_runs_are_not_enough() -> None:
    runs = outcomes(World(ladder([0.5, 0.95]), step_at(0.86), seeds=1))
    assert compare_predictors(runs).conclusion == "not_enough"


def test_with_one_setting_no_threshold_is_carried_over() -> None:
    found = compare_predictors(outcomes(World(ladder([0.5, 0.7, 0.8, 0.9, 0.95]), step_at(0.86))))
    assert found.table["transfer"].isna().all()
    assert found.left_out == 0


def test_a_statistic_that_was_not_measured_is_left_out() -> None:
    runs = outcomes(World(ladder([0.5, 0.7, 0.8, 0.9, 0.95]), step_at(0.86))).assign(p01=math.nan)
    assert set(compare_predictors(runs).table["statistic"]) == {"p05", "p10", "p50", "mean"}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30).filter(
        lambda x: len({b for _, b in x}) == 2
    )
)
def test_auc_agrees_with_another_implementation(pairs: list[tuple[int, bool]]) -> None:
    values = np.asarray([v for v, _ in pairs], float)
    collapsed = np.asarray([c for _, c in pairs])
    assert auc(values, collapsed) == pytest.approx(roc_auc_score(collapsed, -values))


def test_auc_needs_both_kinds() -> None:
    assert math.isnan(auc(np.array([0.1, 0.2]), np.array([True, True])))


def test_auc_within_settings_ignores_differences_between_them() -> None:
    values = np.array([0.1, 0.2, 0.8, 0.9])
    collapsed = np.array([True, False, True, False])
    group = np.array([0, 0, 1, 1])
    assert auc(values, collapsed) == 0.75
    assert auc_within(values, collapsed, group) == 1
    assert math.isnan(auc_within(values, collapsed, np.arange(4)))


def test_the_cut_lies_between_the_outcomes() -> None:
    values = np.array([0.1, 0.2, 0.6, 0.8])
    assert best_cut(values, np.array([True, True, False, False])) == pytest.approx(0.4)


def test_transfer_is_out_of_sample() -> None:
    """Each setting is in perfect order, but at another place: nothing carries over."""
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
    collapsed = np.array([True, True, False, False] * 2)
    group = np.repeat([0, 1], 4)
    assert transfer(values, collapsed, group, [0, 1]) == 0.5
    assert transfer(values % 0.5, collapsed, group, [0, 1]) == 1
    assert math.isnan(transfer(values, collapsed, np.zeros(8, int), [0]))
