"""Points, attempts and claims; finding a sweep."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import PointFolder, SweepFolder, find_sweep
from sparrow_lab.runs.plan import Plan, PlannedPoint


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    folder = SweepFolder(tmp_path / "demo")
    points = (
        PlannedPoint("aaa", "train", {}, {"tau": 0.86, "seed": 0}, {"seed": 0}),
        PlannedPoint("bbb", "evaluate", {"train": "aaa"}, {"tau": "budget=64"}),
    )
    folder.write_plan(Plan("demo", {"fall": 0.25}, points))
    return folder


def test_a_plan_comes_back_as_it_was(sweep: SweepFolder) -> None:
    plan = sweep.read_plan()
    assert [p.id for p in plan.points] == ["aaa", "bbb"]
    assert plan.verdict == {"fall": 0.25}
    assert sweep.point("bbb").read_point() == plan.point("bbb")
    assert [p.id for p in sweep.points()] == ["aaa", "bbb"]
    assert plan.point("aaa").short() == "tau=0.86,seed=0"
    assert plan.point("bbb").short() == "budget=64"


def test_a_plan_of_a_later_version_is_refused(sweep: SweepFolder) -> None:
    sweep.plan_path.write_text('{"schema": 99, "name": "demo", "points": []}')
    with pytest.raises(UserError, match="schema 99"):
        sweep.read_plan()


def test_a_result_counts_only_with_its_marker(sweep: SweepFolder) -> None:
    point = sweep.point("aaa")
    path = point.path / "result.json"
    for text in ("", "{", '{"metrics": {}}', '{"marker": "doing"}', "[]"):
        path.write_text(text)
        assert point.read_result() is None
    path.unlink()
    point.write_result({"stage": "train", "metrics": {"loss": math.inf}})
    result = point.read_result()
    assert result is not None
    assert result["marker"] == "done" and result["id"] == "aaa" and result["schema"] == 1
    assert result["metrics"] == {"loss": "inf"}


@pytest.mark.parametrize("name", ["curve.json", "schedule.json"])
def test_a_result_counts_only_while_what_was_made_is_whole(sweep: SweepFolder, name: str) -> None:
    point, made = sweep.point("aaa"), sweep.point("aaa").path / name
    made.write_text('{"schema": 1}')
    point.write_result({"attempt": 1})
    assert point.read_result() is not None and point.result_problem() == ""
    made.write_text('{"schema": 2}')
    assert point.read_result() is None
    assert point.result_problem() == f"{name} is damaged: it is not what this point made"
    made.unlink()
    assert point.read_result() is None
    assert point.result_problem() == f"{name} is missing"
    made.write_text("{}")
    point.write_result({"attempt": 2})
    assert (point.read_result() or {})["attempt"] == 2


def test_an_alias_answers_for_no_file_of_the_point_that_ran(sweep: SweepFolder) -> None:
    (sweep.point("aaa").path / "curve.json").write_text("{}")
    sweep.point("aaa").write_result({"alias_of": None})
    sweep.point("bbb").write_result({**(sweep.point("aaa").read_result() or {}), "alias_of": "aaa"})
    assert sweep.point("bbb").read_result() is not None


def test_the_first_result_stays(sweep: SweepFolder) -> None:
    point = sweep.point("aaa")
    point.write_result({"attempt": 1})
    point.write_result({"attempt": 2})
    result = point.read_result()
    assert result is not None and result["attempt"] == 1


def test_claims_are_exclusive(sweep: SweepFolder) -> None:
    point = sweep.point("aaa")
    with ThreadPoolExecutor(16) as pool:
        attempts = list(pool.map(lambda i: point.new_attempt({"pid": i}), range(32)))
    assert sorted(a.number for a in attempts) == list(range(1, 33))
    assert len({(a.read_claim() or {})["pid"] for a in attempts}) == 32
    owners = [a for a in attempts if a.still_owner()]
    assert [a.number for a in owners] == [32]


def test_attempts_are_in_order_of_number_not_of_name(sweep: SweepFolder) -> None:
    point = sweep.point("aaa")
    for i in range(11):
        point.new_attempt({"pid": i})
    assert [a.number for a in point.attempts()] == list(range(1, 12))


def test_a_folder_without_a_claim_is_no_attempt(sweep: SweepFolder) -> None:
    point = sweep.point("aaa")
    (point.path / "attempts" / "1").mkdir(parents=True)
    assert point.attempts() == []
    assert point.new_attempt({"pid": 1}).number == 1


def test_aliases_are_followed(sweep: SweepFolder) -> None:
    sweep.point("aaa").write_result({"alias_of": None})
    sweep.point("bbb").write_result({"alias_of": "aaa"})
    assert sweep.point("bbb").followed() == sweep.point("aaa")
    assert sweep.point("aaa").followed() == sweep.point("aaa")
    assert sweep.point("ccc").followed() == PointFolder(sweep.path / "points" / "ccc")


def test_one_point_owns_a_run(sweep: SweepFolder) -> None:
    assert sweep.claim_effective("key", "aaa") == "aaa"
    assert sweep.claim_effective("key", "bbb") == "aaa"
    sweep.take_effective("key", "bbb")
    assert sweep.claim_effective("key", "aaa") == "bbb"


def test_a_sweep_is_found_by_name_and_by_path(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = sweep.path.parent
    assert find_sweep("demo", root).path == sweep.path
    assert find_sweep(str(sweep.path), root / "nowhere").path == sweep.path
    monkeypatch.setenv("SPARROW_RUNS", str(root))
    assert find_sweep("demo").path == sweep.path
    with pytest.raises(UserError, match="did you mean 'demo'"):
        find_sweep("demmo", root)
    with pytest.raises(UserError, match="there is no sweep there"):
        find_sweep("demo", root / "nowhere")
