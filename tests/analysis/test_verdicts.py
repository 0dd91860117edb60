"""The rule of collapse, run by run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_analysis.read import read_sweep
from sparrow_analysis.verdicts import judge, verdicts
from sparrow_lab.config.schema import VerdictConfig
from sparrow_lab.train.detectors import collapsed as detector
from tests.analysis.simulated import World, ladder, step_at, write_sweep

RULE = VerdictConfig(fall=0.25, stay=2)
NAN = math.nan


def steps(values: list[float]) -> list[int]:
    return [10 * i for i in range(len(values))]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.7, 0.8, 0.9, 0.95], "stable"),
        ([0.7, 0.9, 0.9, 0.3, 0.2], "collapsed"),
        ([0.7, 0.9, 0.3, 0.3, 0.9, 0.9], "stable"),  # it came back
        ([0.7, 0.9, 0.9, 0.9, 0.6], "stable"),  # down only once: it did not stay
        ([0.7, 0.8, 0.69, 0.7], "stagnated"),
        ([0.7, 0.7, 0.7, 0.7], "stagnated"),
        ([0.9, 0.6749, 0.6749], "collapsed"),  # a little more than a quarter
        ([0.9, 0.6751, 0.6751], "stagnated"),  # a little less
        ([0.7, 0.9], "unknown"),
        ([], "unknown"),
        ([0.7, 0.9, NAN, NAN], "collapsed"),
        ([0.7, NAN, 0.9, 0.92], "stable"),
        ([NAN, NAN, NAN, NAN], "unknown"),
        ([0.7, 0.9, 0.2, math.inf], "collapsed"),
    ],
)
def test_kinds(values: list[float], kind: str) -> None:
    assert judge(steps(values), values, RULE, finished=True).kind == kind


def test_a_floor_is_a_second_way_to_fall() -> None:
    rule = VerdictConfig(fall=0.9, floor=0.5, stay=2)
    assert judge([0, 1, 2, 3], [0.7, 0.9, 0.45, 0.4], rule, finished=True).kind == "collapsed"
    assert judge([0, 1, 2, 3], [0.7, 0.9, 0.55, 0.6], rule, finished=True).kind == "stagnated"


def test_a_run_that_ended_early_is_censored_even_while_it_is_down() -> None:
    found = judge([0, 10, 20, 30], [0.7, 0.9, 0.2, 0.2], RULE, finished=False)
    assert found.kind == "censored"
    assert found.down
    assert "while it was down" in found.evidence


def test_a_run_without_an_evaluation_waits() -> None:
    found = judge([], [], RULE, finished=False)
    assert found.kind == "waiting"
    assert math.isnan(found.peak)


def test_the_evidence_names_peak_fall_and_end() -> None:
    found = judge([0, 10, 20, 30, 40], [0.7, 0.9, 0.8, 0.3, 0.2], RULE, finished=True)
    assert (found.peak, found.peak_step, found.final, found.fell_step) == (0.9, 10, 0.2, 30)
    assert found.evidence == (
        "From 0.70 to a peak of 0.90 at step 10, then 0.20 at 40; below 0.68 since step 30."
    )


def test_the_evidence_says_that_values_were_not_finite() -> None:
    found = judge([0, 10, 20, 30], [0.7, 0.9, NAN, NAN], RULE, finished=True)
    assert found.nan == 2
    assert "2 of 4 evaluations are not finite" in found.evidence
    assert found.final == 0.9


def test_the_evidence_names_how_low_a_run_was_that_came_back() -> None:
    values = [0.7, 0.9, 0.3, 0.25, 0.9, 0.95]
    found = judge(steps(values), values, RULE, finished=True)
    assert found.kind == "stable"
    assert (found.lowest, found.lowest_step, found.came_back) == (0.25, 30, True)
    assert found.evidence == (
        "From 0.70 to a peak of 0.95 at step 50, the last evaluation; lowest 0.25 at step 30, "
        "below the line of 0.68."
    )


def test_one_low_evaluation_is_named_but_would_not_have_been_a_collapse() -> None:
    values = [0.7, 0.9, 0.25, 0.9, 0.9]
    found = judge(steps(values), values, RULE, finished=True)
    assert (found.lowest, found.lowest_step, found.came_back) == (0.25, 20, False)
    assert "lowest 0.25 at step 20, below the line of 0.68" in found.evidence


def test_what_lies_above_the_line_of_its_time_is_no_low() -> None:
    for values in ([0.4, 0.5, 0.95, 0.94], [0.9, 0.7, 0.9], [0.7, 0.9, 0.8, 0.3, 0.2]):
        found = judge(steps(values), values, RULE, finished=True)
        assert math.isnan(found.lowest) and found.lowest_step is None and not found.came_back
        assert "lowest" not in found.evidence


@given(values=st.lists(st.floats(0, 1), min_size=4, max_size=12))
def test_a_run_came_back_if_an_earlier_end_would_have_been_a_collapse(values: list[float]) -> None:
    found = judge(steps(values), values, RULE, finished=True)
    earlier = [
        judge(steps(values[:n]), values[:n], RULE, finished=True).kind == "collapsed"
        for n in range(1, len(values))
    ]
    assert found.came_back == (found.kind != "collapsed" and any(earlier))
    if found.came_back:
        assert math.isfinite(found.lowest)


def test_of_equal_peaks_the_first_counts() -> None:
    assert judge([0, 10, 20], [0.9, 0.9, 0.8], RULE, finished=True).peak_step == 0


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="2 steps for 1"):
        judge([0, 1], [0.5], RULE, finished=True)


@given(
    values=st.lists(st.one_of(st.floats(0, 1), st.just(NAN)), max_size=12),
    fall=st.floats(0.05, 0.9),
    floor=st.one_of(st.none(), st.floats(0, 1)),
    stay=st.integers(1, 4),
)
def test_the_detector_that_watches_a_run_says_the_same(
    values: list[float], fall: float, floor: float | None, stay: int
) -> None:
    rule = VerdictConfig(fall=fall, floor=floor, stay=stay)
    found = judge(steps(values), values, rule, finished=True)
    if any(map(math.isfinite, values)):
        assert (found.kind == "collapsed") == detector(values, fall, floor, stay)
    else:
        assert found.kind == "unknown"


def test_verdicts_of_a_sweep(tmp_path: Path) -> None:
    world = World(
        ladder([0.5, 0.7, 0.95]),
        step_at(0.86),
        seeds=2,
        stop_at=lambda level, seed: 20 if level.p05 == 0.7 and seed == 1 else None,
        nan_from=lambda level, seed: 20 if level.p05 == 0.95 and seed == 0 else None,
    )
    frames = read_sweep(write_sweep(tmp_path, world).path)
    runs = verdicts(frames).set_index(["tau", "seed"])
    assert runs.loc[(0.5, 0), "verdict"] == "collapsed"
    assert runs.loc[(0.7, 1), "verdict"] == "censored"
    assert runs.loc[(0.95, 0), "verdict"] == "collapsed"
    assert runs.loc[(0.95, 0), "nan"] == 6
    assert runs.loc[(0.95, 1), "verdict"] == "stable"
    assert runs.loc[runs["dense"], "verdict"].eq("stable").all()
