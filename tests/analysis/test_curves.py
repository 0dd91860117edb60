"""Curves and stairs, ready to draw."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from sparrow_analysis.curves import (
    percentile_curves,
    same_schedules,
    slope_with_length,
    staircase,
)
from sparrow_analysis.frames import SweepFrames
from sparrow_analysis.read import read_sweep
from tests.analysis.simulated import Level, World, ladder, step_at, write_sweep


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> SweepFrames:
    same = [Level("tiny-s", 8, tau, 0.9, 0.98, name="one schedule") for tau in (0.85, 0.86)]
    world = World([*same, *ladder([0.6])], step_at(0.5), seeds=1)
    folder: Path = tmp_path_factory.mktemp("curves")
    return read_sweep(write_sweep(folder, world).path)


def test_a_curve_a_budget_in_order_of_length(frames: SweepFrames) -> None:
    curves = percentile_curves(frames.curves)
    assert list(curves["budget"].unique()) == sorted(curves["budget"].unique())
    for _, line in curves.groupby("budget"):
        assert line["length"].is_monotonic_increasing
        assert (line["low"] <= line["value"]).all() and (line["value"] <= line["high"]).all()
    assert curves["length"].iloc[0] == 32 + 15.5


def test_only_p5_has_an_interval(frames: SweepFrames) -> None:
    assert percentile_curves(frames.curves, "mean")["low"].isna().all()


def test_the_tail_falls_with_length_and_the_mean_hardly(frames: SweepFrames) -> None:
    tail = slope_with_length(frames.curves).set_index("budget")["change"]
    mean = slope_with_length(frames.curves, "mean").set_index("budget")["change"]
    assert tail[48] < -0.2
    assert abs(mean[48]) < 0.1


def test_stairs_by_hand() -> None:
    steps = pd.DataFrame(
        {
            "schedule_id": "a",
            "name": "tau=0.9",
            "model": "m",
            "page_size": 8,
            "start": [0, 100, 900],
            "budget": [64.0, 96.0, math.nan],
        }
    )
    line = staircase(steps, until=500)
    assert line["length"].tolist() == [0, 100, 100, 500]
    assert line["budget"].tolist() == [64, 64, 96, 96]
    assert staircase(steps.iloc[:0], 500).empty


def test_levels_that_are_one_schedule_are_one_row(frames: SweepFrames) -> None:
    distinct = same_schedules(frames.schedules)
    assert "tau=0.85 = tau=0.86" in set(distinct["names"])
    assert len(distinct) == 3
    assert same_schedules(frames.schedules.iloc[:0]).empty
