"""Events: exact values, torn lines, merged attempts, and the same after compaction."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.damage import Damaged
from sparrow_lab.runs.events import EventWriter, compact, read_events, read_last
from sparrow_lab.runs.layout import PointFolder

VALUES = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.sampled_from(["reward/mean", "acceptance/p05", "acceptance/bin_16/p05"])
STEPS = st.lists(
    st.tuples(st.integers(0, 20), st.dictionaries(NAMES, VALUES, min_size=1)), max_size=12
)


def same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def new_attempt(point: PointFolder) -> AttemptFolder:
    return point.new_attempt({"pid": 1})


@pytest.fixture
def point(tmp_path: Path) -> PointFolder:
    return PointFolder(tmp_path / "points" / "abc")


@given(tries=st.lists(STEPS, max_size=3), compacted=st.integers(0, 7))
def test_the_highest_attempt_wins_each_step(
    tmp_path_factory: pytest.TempPathFactory,
    tries: list[list[tuple[int, dict[str, float]]]],
    compacted: int,
) -> None:
    point = PointFolder(tmp_path_factory.mktemp("events") / "abc")
    truth: dict[int, dict[str, float]] = {}
    for number, rows in enumerate(tries):
        attempt = new_attempt(point)
        own: dict[int, dict[str, float]] = {}
        with EventWriter(attempt) as writer:
            for step, metrics in rows:
                writer.write(step, metrics)
                own[step] = {**own.get(step, {}), **metrics}
        truth.update(own)
        if compacted & (1 << number):
            compact(attempt)
    events = read_events(point)
    assert events.steps == sorted(truth)
    for step, _, _, metrics in events.rows:
        assert metrics.keys() == truth[step].keys()
        assert all(same(v, truth[step][k]) for k, v in metrics.items())
    assert events.dropped_lines == 0


def test_non_finite_values_are_spelled(point: PointFolder) -> None:
    attempt = new_attempt(point)
    with EventWriter(attempt) as writer:
        writer.write(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1e-320})
    line = json.loads(attempt.events_path.read_text())
    assert line["metrics"] == {"a": "nan", "b": "inf", "c": "-inf", "d": 1e-320}
    assert line["attempt"] == 1 and line["step"] == 1
    assert read_events(point).series("b") == ([1], [math.inf])


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_dropped_and_counted(point: PointFolder, cut: int) -> None:
    attempt = new_attempt(point)
    with EventWriter(attempt) as writer:
        for step in range(3):
            writer.write(step, {"reward/mean": float(step)})
    whole = attempt.events_path.read_bytes()
    attempt.events_path.write_bytes(whole[:-cut])
    events = read_events(point)
    assert events.steps == ([0, 1, 2] if cut == 1 else [0, 1])
    assert events.dropped_lines == (0 if cut == 1 else 1)
    compact(attempt)
    assert not attempt.events_path.exists()
    assert read_events(point).dropped_lines == events.dropped_lines
    assert read_events(point).steps == events.steps


def test_a_crash_between_parquet_and_removal_changes_nothing(point: PointFolder) -> None:
    attempt = new_attempt(point)
    with EventWriter(attempt) as writer:
        writer.write(1, {"a": 1.0})
    lines = attempt.events_path.read_bytes()
    compact(attempt)
    before = read_events(point)
    attempt.events_path.write_bytes(lines)
    assert read_events(point) == before
    compact(attempt)
    assert read_events(point) == before and not attempt.events_path.exists()


def test_compacting_nothing_does_nothing(point: PointFolder) -> None:
    attempt = new_attempt(point)
    compact(attempt)
    assert [p.name for p in attempt.path.iterdir()] == ["claim.json"]
    assert read_events(point).rows == []


def test_a_writer_refuses_what_mlflow_would(point: PointFolder) -> None:
    with EventWriter(new_attempt(point)) as writer:
        with pytest.raises(ValueError, match="not allowed"):
            writer.write(1, {"p(5)": 1.0})
        with pytest.raises(TypeError, match="text"):
            writer.write(1, {"a": "1.0"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="closed"):
        writer.write(1, {"a": 1.0})
    assert read_events(point).rows == []


def test_the_last_values_come_from_the_end_of_the_file(point: PointFolder) -> None:
    attempt = new_attempt(point)
    assert read_last(attempt) == {}
    with EventWriter(attempt) as writer:
        for step in range(200):
            writer.write(step, {"reward/mean": float(step)})
        writer.write(200, {"evaluate/reward": 0.5})
    assert read_last(attempt, tail_bytes=500) == {"reward/mean": 199.0, "evaluate/reward": 0.5}


def test_the_attempt_of_each_row_is_kept(point: PointFolder) -> None:
    for steps in ([1, 2, 3], [3, 4]):
        with EventWriter(new_attempt(point)) as writer:
            for step in steps:
                writer.write(step, {"a": 0.0})
    assert [(row[0], row[2]) for row in read_events(point).rows] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert read_events(point).names() == ["a"]


@pytest.mark.parametrize("keep", [0, 3, 200])
def test_a_damaged_compacted_file_is_named(point: PointFolder, keep: int) -> None:
    attempt = new_attempt(point)
    with EventWriter(attempt) as writer:
        writer.write(0, {"reward/mean": 0.5})
    compact(attempt)
    path = attempt.path / "events.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(Damaged, match=r"^attempts/1/events.parquet is damaged: [A-Z].*[a-z)]$"):
        read_events(point)


def test_events_that_are_a_folder_are_named(point: PointFolder) -> None:
    new_attempt(point).events_path.mkdir()
    with pytest.raises(Damaged, match=r"^attempts/1/events.jsonl is damaged: Is a directory"):
        read_events(point)
