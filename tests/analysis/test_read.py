"""From run folders to frames: names, aliases, what is missing, what is broken."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparrow_analysis.frames import number
from sparrow_analysis.read import read_sweep
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from tests.analysis.simulated import Level, World, ladder, step_at, write_sweep


def test_a_finished_sweep(tmp_path: Path) -> None:
    world = World(ladder([0.6, 0.9]), step_at(0.86), seeds=2)
    frames = read_sweep(write_sweep(tmp_path, world).path)
    assert frames.name == "simulated"
    assert frames.tasks["state"].eq("done").all()
    assert len(frames.runs) == 6
    sparse = frames.runs[~frames.runs["dense"]]
    assert sparse["group"].unique().tolist() == ["tiny-s · page 8"]
    assert sparse["p05"].unique().tolist() == [0.6, 0.9]
    assert sparse["finished"].all()
    dense = frames.runs[frames.runs["dense"]]
    assert dense["page_size"].isna().all()
    assert dense["group"].tolist() == ["tiny-s", "tiny-s"] == dense["controls"].tolist()
    assert set(frames.evaluations["step"]) == set(range(0, 41, 4))
    assert "acceptance/p05" in frames.training
    assert not any("bin_" in name for name in frames.training)
    assert frames.by_length["bin_start"].unique().tolist() == [32]
    assert set(frames.curves["trajectory"]) == {"own", "dense"}
    assert frames.steps.loc[frames.steps["name"].eq("dense"), "budget"].isna().all()
    assert frames.notes == [] == frames.left_out


def test_a_sweep_is_found_by_name(tmp_path: Path) -> None:
    write_sweep(tmp_path, World(ladder([0.6]), step_at(0.86), seeds=1), name="mine")
    assert read_sweep("mine", tmp_path).name == "mine"
    with pytest.raises(UserError, match="did you mean 'mine'"):
        read_sweep("mime", tmp_path)


def test_one_run_with_several_names_is_one_row(tmp_path: Path) -> None:
    same = [
        Level("tiny-s", 8, 0.85, 0.9, 0.98, name="one schedule"),
        Level("tiny-s", 8, 0.86, 0.9, 0.98, name="one schedule"),
        Level("tiny-s", 8, 0.95, 0.96, 0.99),
    ]
    frames = read_sweep(write_sweep(tmp_path, World(same, step_at(0.5), seeds=2)).path)
    sparse = frames.runs[~frames.runs["dense"]]
    assert len(sparse) == 4
    assert sparse["names"].unique().tolist() == ["tau=0.85 = tau=0.86", "tau=0.95"]
    assert sparse["level"].nunique() == 2
    assert frames.tasks["alias_of"].ne("").sum() == 2


def test_further_swept_fields_part_the_settings(tmp_path: Path) -> None:
    levels = ladder([0.6], lr=1e-4) + ladder([0.7], lr=5e-4)
    frames = read_sweep(write_sweep(tmp_path, World(levels, step_at(0.86), seeds=1)).path)
    sparse = frames.runs[~frames.runs["dense"]]
    assert sparse["group"].tolist() == [
        "tiny-s · page 8 · lr 0.0001",
        "tiny-s · page 8 · lr 0.0005",
    ]
    assert sparse["lr"].tolist() == [1e-4, 5e-4]
    dense = frames.runs[frames.runs["dense"]]
    assert dense["controls"].tolist() == ["tiny-s · lr 0.0001"]
    assert sparse["controls"].tolist() == ["tiny-s · lr 0.0001", "tiny-s · lr 0.0005"]


def test_an_unfinished_sweep_has_the_same_columns(tmp_path: Path) -> None:
    world = World(ladder([0.6, 0.9]), step_at(0.86), seeds=2)
    whole = read_sweep(write_sweep(tmp_path, world, "whole").path)
    sweep = write_sweep(tmp_path, world, "part")
    for folder in (tmp_path / "part" / "points").iterdir():
        point = json.loads((folder / "point.json").read_text())
        if point["stage"] in ("train", "evaluate") or point["label"].get("tau") == 0.9:
            (folder / "result.json").unlink(missing_ok=True)
    part = read_sweep(sweep.path)
    assert set(part.tasks["state"]) == {"done", "started", "planned"}
    assert list(part.runs.columns) == list(whole.runs.columns)
    assert not part.runs["finished"].any()
    unmeasured = part.runs["tau"].eq(0.9)
    assert part.runs.loc[unmeasured, "p05"].isna().all()
    assert part.runs.loc[~unmeasured, "p05"].notna().all()
    assert part.runs.loc[unmeasured, "schedule"].unique().tolist() == ["tau=0.9"]


def test_a_sweep_that_has_only_been_planned(tmp_path: Path) -> None:
    world = World(ladder([0.6, 0.9]), step_at(0.86), seeds=2)
    sweep = write_sweep(tmp_path, world)
    for folder in (tmp_path / "simulated" / "points").iterdir():
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_file() and path.name != "point.json":
                path.unlink()
    frames = read_sweep(sweep.path)
    assert frames.tasks["state"].eq("planned").all()
    assert len(frames.runs) == 6
    for empty in (frames.curves, frames.pooled, frames.schedules, frames.steps, frames.measured):
        assert empty.empty
        assert len(empty.columns)


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    world = World(ladder([0.9]), step_at(0.86), seeds=1, stop_at=lambda level, seed: 20)
    frames = read_sweep(write_sweep(tmp_path, world).path)
    train = frames.tasks[frames.tasks["stage"].eq("train")]
    assert train["state"].eq("interrupted").all()
    assert train["reason"].iloc[0] == "asked to stop after step 20"
    assert frames.runs["last_step"].tolist() == [20, 20]


def test_a_file_that_is_not_what_its_point_made_is_named_and_left_out(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, World(ladder([0.6, 0.9]), step_at(0.86), seeds=1))
    (point,) = (p for p in sweep.read_plan().points if p.stage == "calibrate")
    halve(sweep.point(point.id).path / "curve.json")
    frames = read_sweep(sweep.path)
    assert len(frames.left_out) == 1 and frames.curves.empty
    assert "curve.json is damaged: it is not what this point made" in frames.left_out[0]


def test_unreadable_files_are_named_and_left_out(tmp_path: Path) -> None:
    """Of results of earlier versions too, which hold no hashes."""
    sweep = write_sweep(tmp_path, World(ladder([0.6, 0.9]), step_at(0.86), seeds=1))
    forget_hashes(sweep)
    for point in sweep.read_plan().points:
        if point.stage == "schedule" and point.label["tau"] == 0.9:
            (sweep.point(point.id).path / "schedule.json").write_text("{")
        if point.stage == "calibrate":
            (sweep.point(point.id).path / "curve.json").write_text('{"schema": 1}')
    frames = read_sweep(sweep.path)
    assert len(frames.left_out) == 2 and frames.notes == []
    assert frames.left_out[0].startswith("calibrate model=tiny-s,page_size=8 (")
    assert "makes no sense (KeyError: 'page_size')" in frames.left_out[0]
    assert "schedule.json is damaged: it is no whole JSON object" in frames.left_out[1]
    assert frames.curves.empty
    assert set(frames.schedules["name"]) == {"tau=0.6", "dense"}


def forget_hashes(sweep: SweepFolder) -> None:
    """Make results what earlier versions wrote: without hashes of what their points made."""
    for point in sweep.read_plan().points:
        path = sweep.point(point.id).path / "result.json"
        result = json.loads(path.read_text())
        path.write_text(json.dumps({k: v for k, v in result.items() if k != "made"}))


def halve(path: Path) -> None:
    """Cut a file, as a disk that is full or a copy that broke off does."""
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def break_events(folder: Path) -> None:
    halve(folder / "attempts" / "1" / "events.parquet")


def lose_events(folder: Path) -> None:
    (folder / "attempts" / "1" / "events.parquet").unlink()


def half_of_the_lines(folder: Path) -> None:
    """A finished run that was never compacted."""
    lines = [
        {"step": step, "time": 1.0, "attempt": 1, "metrics": {"evaluate/reward": 0.7}}
        for step in range(0, 9, 2)
    ]
    lose_events(folder)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "attempts" / "1" / "events.jsonl").write_text(text[: len(text) // 2])


def other_columns(folder: Path) -> None:
    table = pa.table({"step": [0, 2], "value": [0.5, None]})
    pq.write_table(table, folder / "attempts" / "1" / "events.parquet")


def break_result(folder: Path) -> None:
    halve(folder / "result.json")


def unmark_result(folder: Path) -> None:
    (folder / "result.json").write_text('{"stage": "train"}')


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (break_events, "attempts/1/events.parquet is damaged: Parquet magic bytes not found"),
        (lose_events, "the run is done, but its evaluations at step 0, 2, 4, ... are gone"),
        (half_of_the_lines, "the run is done, but its evaluations at step 4, 6, 8 are gone"),
        (other_columns, "attempts/1/events.parquet is damaged: step, time, attempt"),
        (break_result, "result.json is damaged: it is no whole JSON object"),
        (unmark_result, "result.json is damaged: it has no marker 'done'"),
    ],
)
def test_a_run_with_a_damaged_file_is_left_out_and_named(
    tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    world = World(ladder([0.6, 0.9]), step_at(0.86), seeds=2, steps=8, evaluate_every=2)
    sweep = write_sweep(tmp_path, world)
    whole = read_sweep(sweep.path)
    hurt = whole.runs["run"].iloc[1]
    damage(sweep.point(hurt).path)
    frames = read_sweep(sweep.path)
    (line,) = frames.left_out
    assert line.startswith("train ") and f"({hurt}): " in line and says in line
    assert frames.runs["run"].tolist() == [r for r in whole.runs["run"] if r != hurt]
    assert hurt not in set(frames.evaluations["run"]) | set(frames.training["run"])
    state = frames.tasks.set_index("id").loc[hurt, "state"]
    assert state == ("damaged" if "result.json" in says else "done")


def test_a_damaged_result_of_a_run_with_several_names_takes_them_all(tmp_path: Path) -> None:
    same = [Level("tiny-s", 8, tau, 0.9, 0.98, name="one") for tau in (0.85, 0.86)]
    world = World(same, step_at(0.5), seeds=1, dense=False, steps=8, evaluate_every=2)
    sweep = write_sweep(tmp_path, world)
    (run,) = read_sweep(sweep.path).runs["run"]
    break_result(sweep.point(run).path)
    frames = read_sweep(sweep.path)
    assert frames.runs.empty and list(frames.runs.columns)
    assert len(frames.left_out) == 2


def test_half_a_curve_leaves_no_rows(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, World(ladder([0.9]), step_at(0.5), seeds=1))
    (calibrate,) = [p for p in sweep.read_plan().points if p.stage == "calibrate"]
    forget_hashes(sweep)
    path = sweep.point(calibrate.id).path / "curve.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "pooled": None}))
    frames = read_sweep(sweep.path)
    assert frames.curves.empty and frames.pooled.empty and len(frames.left_out) == 1
    path.unlink()
    assert "curve.json is damaged: it is gone" in read_sweep(sweep.path).left_out[0]


def test_torn_event_lines_are_counted(tmp_path: Path) -> None:
    world = World(ladder([0.9]), step_at(0.86), seeds=1, dense=False, stop_at=lambda lv, seed: 20)
    sweep = write_sweep(tmp_path, world)
    events = next((tmp_path / "simulated").rglob("events.jsonl"))
    events.write_bytes(events.read_bytes() + b'{"step": 21, "ti')
    frames = read_sweep(sweep.path)
    assert "1 unreadable event lines" in frames.notes[0]
    assert frames.runs["last_step"].tolist() == [20]


def test_a_verdict_that_makes_no_sense_is_the_users_mistake(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, World(ladder([0.9]), step_at(0.86), seeds=1))
    plan = sweep.read_plan()
    sweep.write_plan(Plan(plan.name, {"fall": 3.0}, plan.points))
    with pytest.raises(UserError, match="verdict"):
        read_sweep(sweep.path)


def test_numbers_as_files_spell_them() -> None:
    assert number("0.5") == 0.5
    assert number("-inf") == -math.inf
    assert math.isnan(number(None))
    assert math.isnan(number("many"))
