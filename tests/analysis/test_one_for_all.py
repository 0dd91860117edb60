"""Does one threshold serve all settings? Yes where it was planted so, no where it was not."""

from __future__ import annotations

import math

import numpy as np

from sparrow_analysis.one_for_all import one_for_all
from tests.analysis.outcomes import levels, outcomes
from tests.analysis.simulated import World, ladder, step_at

SETTINGS = [("tiny-s", 4), ("tiny-s", 8)]


def test_a_common_threshold_is_rarely_refused() -> None:
    refused = 0
    for seed in range(20):
        made = levels(SETTINGS, 6, np.random.default_rng(seed))
        runs = outcomes(World(made, step_at(0.86, 0.02)), seed)
        refused += bool(one_for_all(runs, shuffles=199).p < 0.05)
    assert refused <= 3


def test_a_common_threshold_seen_from_two_sides_is_not_refused() -> None:
    """One setting was tried below the threshold and one above: that is no difference."""
    both = ladder([0.5, 0.6, 0.7, 0.8], page_size=4) + ladder([0.9, 0.93, 0.95, 0.98])
    assert one_for_all(outcomes(World(both, step_at(0.86)))).p > 0.9


def test_two_thresholds_are_found_out() -> None:
    found = 0
    for seed in range(8):
        made = levels(SETTINGS, 6, np.random.default_rng(seed))
        world = World(made, lambda lv: float(lv.p05 < (0.72 if lv.page_size == 4 else 0.92)))
        result = one_for_all(outcomes(world, seed), "page_size", shuffles=199)
        assert result.parts == 2
        found += bool(result.p < 0.05)
    assert found >= 6


def test_with_one_setting_there_is_no_test() -> None:
    result = one_for_all(outcomes(World(ladder([0.5, 0.8, 0.95]), step_at(0.86))))
    assert result.parts == 1
    assert math.isnan(result.p)


def test_settings_with_few_schedules_have_no_say() -> None:
    both = ladder([0.5, 0.6, 0.7, 0.9], page_size=4) + ladder([0.9, 0.95])
    assert one_for_all(outcomes(World(both, step_at(0.86)))).parts == 1


def test_nothing_in_nothing_out() -> None:
    assert math.isnan(one_for_all(outcomes(World(ladder([0.5]), step_at(0.86))).iloc[:0]).p)
