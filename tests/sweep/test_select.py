"""Points by label and by id: what matches, and what is said when nothing does."""

from __future__ import annotations

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.select import find_points, matching, parse_where

POINTS = [
    PlannedPoint("abc123", "train", label={"model": "tiny-s", "tau": 0.86, "seed": 0}),
    PlannedPoint("abd456", "train", label={"model": "tiny-s", "tau": 0.9, "seed": 10}),
    PlannedPoint("fff000", "train", label={"model": "tiny-m", "tau": "dense", "seed": 0}),
    PlannedPoint("fff111", "train", label={"model": "tiny-m", "tau": "budget=64", "seed": 1}),
    PlannedPoint("ccc000", "calibrate", label={"model": "tiny-s"}),
]


def ids(*where: str) -> list[str]:
    return [p.id for p in matching(POINTS, parse_where(where))]


def test_no_condition_means_all() -> None:
    assert ids() == [p.id for p in POINTS]


@pytest.mark.parametrize("text", ["tau=0.86", "tau=.86", "tau=0.860", "tau=86e-2"])
def test_numbers_agree_as_numbers(text: str) -> None:
    assert ids(text) == ["abc123"]


def test_conditions_add_up() -> None:
    assert ids("model=tiny-s", "seed=0") == ["abc123"]
    assert ids("model=tiny-s,seed=10") == ["abd456"]
    assert ids("stage=calibrate") == ["ccc000"]
    assert ids("seed=1") == ["fff111"]  # not seed 10


def test_schedules_by_the_name_that_labels_show() -> None:
    assert ids("tau=dense") == ids("dense") == ["fff000"]
    assert ids("tau=budget=64") == ids("budget=64") == ["fff111"]
    assert ids(POINTS[3].short()) == ["fff111"]


@pytest.mark.parametrize("point", POINTS[:4])
def test_a_label_as_it_is_shown_finds_its_point(point: PlannedPoint) -> None:
    assert find_points(POINTS, point.short()) == [point]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tau", "not key=value"),
        ("=3", "not key=value"),
        ("tau=", "not key=value"),
        ("taau=0.9", "did you mean 'tau'"),
        ("tau=0.87", "no point has tau=0.87"),
        ("tau=0.9,tau=0.8", "both 0.9 and 0.8"),
    ],
)
def test_a_condition_that_cannot_be_met_says_why(where: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ids(where)


def test_ids_by_their_beginning() -> None:
    assert [p.id for p in find_points(POINTS, "abc")] == ["abc123"]
    assert [p.id for p in find_points(POINTS, "ABC12")] == ["abc123"]
    assert find_points(POINTS, "ab") == []  # too short to mean one
    assert find_points(POINTS, "tau=0.5") == []
