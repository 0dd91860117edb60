"""Detectors of collapse on written-out histories."""

from __future__ import annotations

import math

import pytest

from sparrow_lab.train.detectors import WINDOW, collapsed, detector_metrics, drift

NAN = math.nan


@pytest.mark.parametrize(
    ("evaluations", "expected"),
    [
        ([], False),
        ([0.0], False),
        ([0.8, 0.1], False),  # fewer than stay + 1
        ([0.8, 0.1, 0.1], True),
        ([0.8, 0.1, 0.7], False),  # came back
        ([0.8, 0.61, 0.59], False),  # one of the last two is within a quarter
        ([0.8, 0.7, 0.1, 0.9, 0.5, 0.4], True),  # the peak is the running one, 0.9
        ([0.8, 0.59, 0.59, 0.59, 0.8], False),
        ([0.4, 0.5, 0.6, 0.7], False),  # rising
        ([0.0, 0.0, 0.0], False),  # nothing to fall from
        ([0.8, NAN, NAN], True),  # a policy that cannot be evaluated is not well
        ([0.8, 0.1, NAN], True),
        ([NAN, NAN, NAN], True),
        ([NAN, 0.5, 0.5], False),
    ],
)
def test_collapse(evaluations: list[float], expected: bool) -> None:
    assert collapsed(evaluations, fall=0.25, floor=None, stay=2) is expected


def test_a_fall_of_just_the_share_is_no_collapse() -> None:
    assert not collapsed([1.0, 0.75, 0.75], fall=0.25, floor=None, stay=2)
    assert collapsed([1.0, 0.7499, 0.7499], fall=0.25, floor=None, stay=2)


def test_a_floor_counts_whatever_the_peak() -> None:
    assert collapsed([0.3, 0.29, 0.29], fall=0.5, floor=0.3, stay=2)
    assert not collapsed([0.3, 0.29, 0.31], fall=0.5, floor=0.3, stay=2)


@pytest.mark.parametrize("stay", [1, 2, 3])
def test_it_has_to_stay_down(stay: int) -> None:
    history = [0.9, *[0.1] * (stay - 1)]
    assert not collapsed(history, fall=0.25, floor=None, stay=stay)
    assert collapsed([*history, 0.1], fall=0.25, floor=None, stay=stay)


def test_drift_compares_the_ends() -> None:
    assert math.isnan(drift([1.0] * (2 * WINDOW - 1)))
    assert drift([2.0] * WINDOW + [1.0] * WINDOW) == 0.5
    assert drift([2.0] * WINDOW + [99.0] * 3 + [6.0] * WINDOW) == 3.0
    assert math.isnan(drift([0.0] * 2 * WINDOW))


def test_metrics_of_a_step() -> None:
    verdict = {"metric": "evaluate/reward", "fall": 0.25, "floor": None, "stay": 2}
    quiet = detector_metrics([10.0] * 20, [1.0] * 20, [0.5, 0.6], {"a": 1.0}, verdict)
    assert quiet == {
        "detector/length_drop": 0.0,
        "detector/entropy_rise": 0.0,
        "detector/nonfinite": 0.0,
        "detector/collapsed": 0.0,
    }
    shrinking = [10.0] * WINDOW + [5.0] * WINDOW
    heating = [0.4] * WINDOW + [0.9] * WINDOW
    odd = {"a": NAN, "b": math.inf, "c": -math.inf, "d": 0.0}
    loud = detector_metrics(shrinking, heating, [0.9, 0.1, 0.1], odd, verdict)
    assert loud == {
        "detector/length_drop": 1.0,
        "detector/entropy_rise": 1.0,
        "detector/nonfinite": 3.0,
        "detector/collapsed": 1.0,
    }


def test_before_there_is_a_history_nothing_is_raised() -> None:
    assert set(detector_metrics([], [], [], {}, {}).values()) == {0.0}


def test_the_verdicts_rule_is_the_one_that_is_used() -> None:
    history = [0.9, 0.5]
    for verdict, expected in (
        ({"fall": 0.25, "stay": 1}, 1.0),
        ({"fall": 0.25, "stay": 2}, 0.0),
        ({"fall": 0.5, "stay": 1}, 0.0),
        ({"fall": 0.5, "stay": 1, "floor": 0.6}, 1.0),
    ):
        assert detector_metrics([], [], history, {}, verdict)["detector/collapsed"] == expected
