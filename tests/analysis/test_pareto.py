"""Fronts and volumes: small cases by hand, the rest by properties."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_analysis.expense import eflops, reads, shape_of
from sparrow_analysis.pareto import (
    budget_front,
    cost_unit,
    hypervolume,
    on_front,
    run_front,
    volumes,
)
from sparrow_analysis.read import read_sweep
from sparrow_analysis.verdicts import verdicts
from tests.analysis.simulated import World, ladder, step_at, write_sweep

POINTS = st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), min_size=1, max_size=12)


def test_the_front_by_hand() -> None:
    cost = [1, 2, 3, 2, math.nan]
    quality = [0.5, 0.9, 0.8, 0.9, 1.0]
    assert on_front(cost, quality).tolist() == [True, True, False, True, False]


@given(POINTS)
def test_a_point_off_the_front_is_beaten_by_one_on_it(points: list[tuple[float, float]]) -> None:
    cost, quality = (np.asarray(x) for x in zip(*points, strict=True))
    front = on_front(cost, quality)
    assert front.any()
    for i in np.flatnonzero(~front):
        assert (front & (cost <= cost[i]) & (quality >= quality[i])).any()


def test_the_volume_by_hand() -> None:
    assert hypervolume([1], [0.5], worst_cost=2, worst_quality=0) == pytest.approx(0.25)
    assert hypervolume([1, 0.5], [0.5, 0.25], 2, 0) == pytest.approx(0.25 + 0.5 * 0.25 / 2)
    assert hypervolume([], [], 2, 0) == 0
    assert hypervolume([3], [0.5], 2, 0) == 0
    assert math.isnan(hypervolume([1], [0.5], 2, 1.0))


@given(POINTS, st.tuples(st.floats(0, 10), st.floats(0, 1)))
def test_one_more_point_never_makes_the_volume_smaller(
    points: list[tuple[float, float]], more: tuple[float, float]
) -> None:
    cost, quality = zip(*points, strict=True)
    before = hypervolume(cost, quality, 10, 0)
    after = hypervolume([*cost, more[0]], [*quality, more[1]], 10, 0)
    assert -1e-12 <= before <= after + 1e-12 <= 1 + 2e-12


def test_landmarks_count_only_where_there_is_a_choice() -> None:
    assert reads(64, 64, 640, 16) == pytest.approx(64 + 640 / 16 / 2)
    assert reads(64, 64, 640, 16, "minmax") == pytest.approx(64 + 640 / 16)
    assert reads(64, 64, 64, 16) == 64
    assert reads(640, math.nan, 640, 16) == 640


def test_small_pages_pay_more_for_their_landmarks() -> None:
    assert reads(64, 64, 640, 4) > reads(64, 64, 640, 16)


def test_eflops_of_a_known_model() -> None:
    """Facts: 1.7B at 32000 under a budget of 4096 costs a few times less than dense."""
    shape = shape_of("Qwen/Qwen3-1.7B")
    dense, sparse = (float(eflops(shape, b, 32_000, 16)) for b in (math.nan, 4096))
    assert 4 < dense / sparse < 5
    assert math.isnan(float(eflops(shape_of("tiny-s"), 64, 640, 16)))


def test_units_are_never_mixed() -> None:
    known = pd.DataFrame({"reads": [1.0], "eflops": [2.0]})
    unknown = pd.DataFrame({"reads": [1.0], "eflops": [math.nan]})
    assert cost_unit(known) == "eflops"
    assert cost_unit(known, unknown) == "reads"
    assert cost_unit(known.iloc[:0]) == "reads"


def test_fronts_of_a_sweep(tmp_path: Path) -> None:
    both = ladder([0.5, 0.8, 0.95], page_size=4) + ladder([0.6, 0.9])
    frames = read_sweep(write_sweep(tmp_path, World(both, step_at(0.86), seeds=2)).path)
    budgets = budget_front(frames.pooled)
    assert set(budgets["page_size"]) == {4, 8}
    assert budgets["unit"].eq("reads").all()
    assert budgets["on_front"].any()
    best = budgets[budgets["on_front"]].sort_values("cost")
    assert best["quality"].is_monotonic_increasing
    runs = run_front(verdicts(frames))
    assert len(runs) == 6
    assert runs.loc[runs["dense"], "runs"].tolist() == [2]
    assert (runs["low"] <= runs["quality"]).all() and (runs["quality"] <= runs["high"]).all()
    shares = volumes(budgets)
    assert shares["volume"].between(0, 1).all()
    assert len(shares) == 2


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    frames = read_sweep(write_sweep(tmp_path, World(ladder([0.5]), step_at(0.86), seeds=1)).path)
    assert budget_front(frames.pooled.iloc[:0]).empty
    assert run_front(verdicts(frames).iloc[:0]).empty
    assert volumes(budget_front(frames.pooled.iloc[:0])).empty
