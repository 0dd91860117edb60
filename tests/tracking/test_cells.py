"""What MLflow is given of the events, and how what it has is remembered."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.events import Row
from sparrow_lab.tracking.cells import Cell, cells, of_result, settled
from sparrow_lab.tracking.state import Imported

NAMES = st.sampled_from(["reward/mean", "policy/loss", "acceptance/p05"])
ROWS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.floats(0, 2e9),
        st.integers(1, 3),
        st.dictionaries(NAMES, st.floats(allow_nan=True, allow_infinity=True)),
    ),
    unique_by=lambda row: row[0],
).map(sorted)


def row(step: int, attempt: int = 1, **metrics: float) -> Row:
    return (step, 100.0 + step, attempt, metrics)


def test_non_finite_values_are_counted_not_logged() -> None:
    rows = [
        row(0, loss=1.0, kl=math.nan),
        row(1, loss=math.inf, kl=math.nan),
        row(2, loss=-math.inf, kl=0.5),
    ]
    found = {(c.name, c.step): c.value for c in cells(rows)}
    assert found == {
        ("loss", 0): 1.0,
        ("nonfinite/kl", 0): 1.0,
        ("nonfinite/loss", 1): 1.0,
        ("nonfinite/kl", 1): 2.0,
        ("nonfinite/loss", 2): 2.0,
        ("kl", 2): 0.5,
    }


@given(ROWS)
def test_every_value_is_there_once_and_finite(rows: list[Row]) -> None:
    found = cells(rows)
    assert len(found) == sum(len(r[3]) for r in rows)
    assert len({(c.step, c.name) for c in found}) == len(found)
    assert all(math.isfinite(c.value) for c in found)
    assert found == sorted(found)


def test_while_an_attempt_repeats_steps_the_older_ones_wait() -> None:
    rows = [row(0), row(1), row(2, 2), row(3, 1), row(4, 1)]
    assert [r[0] for r in settled(rows, live=True)] == [0, 1, 2]
    assert [r[0] for r in settled(rows, live=False)] == [0, 1, 2, 3, 4]
    assert settled([], live=True) == []


def test_an_attempt_that_starts_over_hides_all_before_it() -> None:
    rows = [row(0, 2), row(1, 1), row(2, 1)]
    assert [r[0] for r in settled(rows, live=True)] == [0]


def test_a_result_adds_only_what_no_event_has() -> None:
    given_ = {"evaluate/peak": 0.9, "loss": 1.0, "note": "text", "flag": True, "kl": "nan"}
    found = of_result(given_, {"loss"}, 7, 5.0)
    assert found is not None
    assert (found[0], set(found[3])) == (7, {"evaluate/peak", "kl"})
    assert of_result({"loss": 1.0}, {"loss"}, 7, 5.0) is None


@given(ROWS, st.integers(0, 30), st.integers(0, 30))
def test_a_growing_run_gives_each_value_once(rows: list[Row], first: int, second: int) -> None:
    everything = cells(rows)
    logged: list[Cell] = []
    state = Imported()
    for until in (*sorted((first, second)), 31):
        now = [cell for cell in everything if cell.step < until]
        news = state.news(now)
        assert news is not None
        logged += news
        state = Imported.from_tag(state.holding(now).to_tag()) or Imported(open=True)
    assert sorted(logged) == everything


def test_a_metric_added_to_the_newest_step_is_news() -> None:
    before = cells([row(0, a=1.0), row(1, a=2.0)])
    after = cells([row(0, a=1.0), row(1, a=2.0, b=3.0)])
    assert Imported().holding(before).news(after) == [Cell(1, "b", 3.0, 101000)]


def test_a_changed_value_means_build_again() -> None:
    before = cells([row(0, a=1.0), row(1, a=2.0)])
    state = Imported().holding(before)
    assert state.news(cells([row(0, a=1.5), row(1, a=2.0)])) is None
    assert state.news(cells([row(0, a=1.0), row(1, a=2.5)])) is None
    assert state.news(cells([row(0, a=1.0)])) is None
    assert state.news(cells([row(0, a=1.0, b=1.0), row(1, a=2.0)])) is None
    assert state.news(before) == []


def test_a_step_of_a_thousand_metrics_fits_the_tag() -> None:
    wide = cells([row(0, **{f"m{i}": float(i) for i in range(3000)})])
    state = Imported().holding(wide)
    assert len(state.to_tag()) < 8000
    assert state.news(wide) == []
    more = cells([row(0, **{f"m{i}": float(i) for i in range(3000)}), row(1, a=1.0)])
    assert state.news(more) == [Cell(1, "a", 1.0, 101000)]


def test_a_tag_of_another_version_or_torn_is_none() -> None:
    tag = Imported(images=(0, 5), artifacts={"a": "b"}).to_tag()
    assert Imported.from_tag(tag) == Imported(images=(0, 5), artifacts={"a": "b"})
    for bad in (None, "", tag[:-3], tag.replace('"version":1', '"version":0'), "[]", "3"):
        assert Imported.from_tag(bad) is None
