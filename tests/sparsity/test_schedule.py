from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.config.schema import ReservedConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sparsity.schedule import DENSE, Schedule, is_variant, reserved_pages

PAGES_1_2 = ReservedConfig(first_pages=1, last_pages=2)


def in_tokens(first: int, last: int) -> ReservedConfig:
    return ReservedConfig(first_tokens=first, last_tokens=last)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    page = draw(st.sampled_from([1, 2, 4, 8, 16, 24]))
    steps = draw(st.integers(1, 6))
    edges = [0, *sorted(draw(st.sets(st.integers(1, 400), min_size=steps - 1, max_size=steps - 1)))]
    pages = sorted(draw(st.lists(st.integers(3, 60), min_size=steps, max_size=steps)))
    budgets = [p * page for p in pages]
    if draw(st.booleans()):
        budgets[-1] = DENSE
    return Schedule(page, tuple(edges), tuple(budgets), name="drawn", model="tiny-s", tau=0.9)


STEPS = Schedule(16, (0, 100, 200), (64, 128, 256), name="tau=0.86", tau=0.86, model="tiny-s")


def test_budget_is_a_step_function_with_closed_left_edges() -> None:
    lengths = np.array([0, 1, 99, 100, 199, 200, 10**6])
    assert STEPS.budgets_for(lengths).tolist() == [64, 64, 64, 128, 128, 256, 256]
    assert [STEPS.budget_at(int(x)) for x in lengths] == STEPS.budgets_for(lengths).tolist()
    assert STEPS.budgets_for(lengths.reshape(7, 1)).shape == (7, 1)


def test_pages_kept_and_tokens_attended() -> None:
    assert [STEPS.pages_at(x) for x in (1, 16, 17, 64, 65, 100)] == [1, 1, 2, 4, 4, 7]
    # 66 tokens lie in 5 pages, the last with 2; four pages are kept, the partial one among them
    assert STEPS.attended_for([64, 66, 100]).tolist() == [64, 3 * 16 + 2, 100]


def test_empty_lengths_stay_empty_and_nonsense_is_a_bug() -> None:
    assert STEPS.budgets_for([]).shape == (0,) and STEPS.pages_for([]).dtype == np.int64
    with pytest.raises(ValueError, match="0 or more"):
        STEPS.budget_at(-1)
    with pytest.raises(TypeError, match="whole numbers"):
        STEPS.budgets_for([1.5])


@pytest.mark.parametrize(
    ("reserved", "page", "expected"),
    [
        (PAGES_1_2, 4, (1, 2)),
        (PAGES_1_2, 128, (1, 2)),
        (in_tokens(16, 17), 16, (1, 2)),
        (in_tokens(17, 18), 16, (2, 3)),
        (in_tokens(0, 1), 16, (0, 1)),
        (in_tokens(16, 32), 4, (4, 9)),
        (in_tokens(16, 32), 128, (1, 2)),
        (in_tokens(5, 5), 1, (5, 5)),
    ],
)
def test_reserved_pages(reserved: ReservedConfig, page: int, expected: tuple[int, int]) -> None:
    assert reserved_pages(reserved, page) == expected


@given(st.integers(0, 100), st.integers(1, 100), st.integers(1, 40), st.integers(1, 500))
def test_reserved_tokens_are_kept_whatever_the_fill(
    first: int, last: int, page: int, length: int
) -> None:
    first_pages, last_pages = reserved_pages(in_tokens(first, last), page)
    pages = -(-length // page)
    kept_from_start = min(length, first_pages * page)
    kept_from_end = length - max(0, pages - last_pages) * page
    assert kept_from_start >= min(first, length)
    assert kept_from_end >= min(last, length)
    assert first_pages == 0 or (first_pages - 1) * page < first
    # one page fewer would not do when the last page holds a single token
    assert last_pages == 1 or (last_pages - 2) * page + 1 < last


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"edges": (1, 100, 200)}, "first edge must be 0"),
        ({"edges": (0, 100, 100)}, "rise strictly"),
        ({"edges": (0, 100)}, "2 edges but 3 budgets"),
        ({"edges": (), "budgets": ()}, "first edge"),
        ({"budgets": (64, 256, 128)}, "256 and then 128 from length 200"),
        ({"budgets": (32, 64, 128)}, "below the reserved pages (48 tokens at page size 16)"),
        ({"budgets": (64, 100, 128)}, "100 from length 100 is not a multiple of the page size 16"),
        ({"page_size": 0}, "page size must be at least 1"),
        ({"dense_layers": -1}, "dense layers"),
    ],
)
def test_steps_that_make_no_schedule_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        replace(STEPS, **change)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_dense_attends_to_everything_at_any_page_size() -> None:
    dense = Schedule.dense(8)
    assert dense.is_dense and dense.budget_at(0) == DENSE
    assert dense.attended_for([1, 7, 8, 9, 10**6]).tolist() == [1, 7, 8, 9, 10**6]
    assert dense.digest == Schedule.dense(64, dense_layers=0).digest
    assert dense.to_json()["budgets"] == [None]
    dense.check_fits(128, "any/model")


@given(schedules(), st.lists(st.integers(0, 700), max_size=50))
def test_simplified_chooses_the_same_pages_with_no_more_steps(
    schedule: Schedule, lengths: list[int]
) -> None:
    plain = schedule.simplified()
    assert plain.pages_for(lengths).tolist() == schedule.pages_for(lengths).tolist()
    assert len(plain.edges) <= len(schedule.edges)
    assert plain.simplified() == plain
    assert plain.digest == schedule.digest


@given(schedules(), schedules())
def test_digests_agree_exactly_when_the_pages_do(a: Schedule, b: Schedule) -> None:
    everywhere = np.arange(0, 2000)
    b = replace(b, page_size=a.page_size, budgets=tuple(_on_pages(b, a.page_size)))
    same = a.pages_for(everywhere).tolist() == b.pages_for(everywhere).tolist()
    assert (a.digest == b.digest) == same


def _on_pages(schedule: Schedule, page: int) -> list[int]:
    return [x if x >= DENSE else x // schedule.page_size * page for x in schedule.budgets]


def test_the_digest_covers_what_decides_a_rollout_and_nothing_else() -> None:
    same = [replace(STEPS, name="x"), replace(STEPS, tau=0.5), replace(STEPS, model=None)]
    same += [replace(STEPS, measured={"p05": 0.9}), replace(STEPS, reserved=in_tokens(9, 9))]
    assert {s.digest for s in same} == {STEPS.digest}
    other = [replace(STEPS, landmark="minmax"), replace(STEPS, score="softmax_max")]
    other += [replace(STEPS, dense_layers=1), replace(STEPS, reserved=in_tokens(17, 9))]
    other += [replace(STEPS, page_size=8), replace(STEPS, edges=(0, 101, 200))]
    assert len({s.digest for s in [STEPS, *other]}) == len(other) + 1


def test_golden_digest() -> None:
    # A change of this value re-runs finished work: raise the schema version instead.
    assert STEPS.digest == "944cd6c7712b8cd7c9d2d1aa1b9fbbbc595dcb20bdee96fc01b853d02cd54ac3"


def test_a_schedule_for_another_page_size_is_refused_naming_both() -> None:
    with pytest.raises(UserError, match=r"page size 16, but the run has page size 32"):
        STEPS.check_fits(32, "tiny-s")


def test_a_schedule_of_another_model_needs_an_explicit_word() -> None:
    with pytest.raises(UserError, match=r"model tiny-s, but the run has model tiny-m"):
        STEPS.check_fits(16, "tiny-m")
    STEPS.check_fits(16, "tiny-m", any_model=True)
    STEPS.check_fits(16, "tiny-s")
    Schedule.fixed(64, 16).check_fits(16, "tiny-m")


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"landmark": "minmax"}, "landmark mean, but the run has landmark minmax"),
        ({"score": "softmax_max"}, "score group_mean"),
        ({"dense_layers": 0}, "dense layers 2, but the run has dense layers 0"),
        ({"reserved": in_tokens(40, 1)}, r"pages (1, 2), but the run has"),
    ],
)
def test_other_settings_are_compared_when_given(run: dict[str, object], says: str) -> None:
    with pytest.raises(UserError) as caught:
        STEPS.check_fits(16, "tiny-s", **run)  # type: ignore[arg-type]
    assert says in str(caught.value)
    STEPS.check_fits(16, "tiny-s", landmark="mean", score="group_mean", dense_layers=2)


def test_variants_of_a_model() -> None:
    assert is_variant("Qwen/Qwen3-1.7B-Base", "qwen3-1.7b")
    assert is_variant("/data/models/Qwen3-1.7B/", "Qwen/Qwen3-1.7B")
    for other in ("Qwen/Qwen3-17B", "Qwen/Qwen3", "Qwen/Qwen3-1.7Bx", "llama-1.7b", ""):
        assert not is_variant(other, "qwen3-1.7b")


@given(schedules())
def test_json_round_trip(schedule: Schedule) -> None:
    text = json.dumps(schedule.to_json(), allow_nan=False)
    assert Schedule.from_json(json.loads(text)) == schedule


def test_file_round_trip_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "schedule.json"
    measured = {"prompts": 64, "p05": 0.87, "by_bin": [{"bin_start": 16, "p05": None}]}
    made = replace(STEPS, measured=measured, reserved=in_tokens(16, 32))
    made.save(path)
    made.save(path)
    assert Schedule.load(path) == made
    assert [p.name for p in path.parent.iterdir()] == ["schedule.json"]


def test_a_file_by_hand_needs_only_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"schema": 1, "page_size": 16, "edges": [0, 100], "budgets": [64, null]}')
    read = Schedule.load(path)
    assert read.budgets == (64, DENSE) and read.reserved_pages() == (1, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "mine.json:1:2: is not JSON"),
        ("[]", "must be an object of schedule.json"),
        ("{}", "the key 'schema' is missing"),
        ('{"schema": 2, "page_size": 16, "edges": [0], "budgets": [64]}', "schema 2 is unknown"),
        ('{"schema": 1, "page_size": 16, "edges": [0], "budget": [64]}', "'budgets' is missing"),
        (
            '{"schema": 1, "page_size": 16, "edges": [0], "budgets": [64], "budgett": 1}',
            "unknown key 'budgett' (did you mean 'budgets'?)",
        ),
        ('{"schema": 1, "page_size": 1.5, "edges": [0], "budgets": [64]}', "found 1.5"),
        ('{"schema": 1, "page_size": 16, "edges": [0], "budgets": ["x"]}', "budgets.0"),
        ('{"schema": 1, "page_size": 16, "edges": [0], "budgets": [64], "tau": NaN}', "tau"),
        ('{"schema": 1, "page_size": 16, "edges": [0], "budgets": [50]}', "not a multiple"),
        (
            '{"schema": 1, "page_size": 16, "edges": [0], "budgets": [64], "digest": "00"}',
            "does not match the steps",
        ),
        (
            '{"schema": 1, "page_size": 16, "edges": [0], "budgets": [64],'
            ' "reserved": {"first_pages": 1, "last_tokens": 2}}',
            "tokens or in pages, not both",
        ),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        Schedule.load(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        Schedule.load(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a text file"):
        Schedule.load(tmp_path / "binary.json")
