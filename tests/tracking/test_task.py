"""What a task's folder says, when a sweep has ended, and which steps get a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.notes import Note
from sparrow_lab.tracking.parent import has_ended, parent_note, parent_status
from sparrow_lab.tracking.pictures import chosen
from sparrow_lab.tracking.steps import join
from sparrow_lab.tracking.task import Task, failure_line, read_task
from tests.tracking import simulate
from tests.tracking.simulate import claim, make_plan, make_sweep

ALIVE = {"host": "elsewhere", "pid": 1, "start": 0.0}


def tasks(sweep: SweepFolder, **notes: Note) -> list[Task]:
    plan = sweep.read_plan()
    return [read_task(p, sweep.point(p.id), notes.get(p.id, Note())) for p in plan.points]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    return make_sweep(tmp_path, make_plan("demo", [0.86], steps=3))


def test_a_sweep_ends_when_all_is_done(sweep: SweepFolder) -> None:
    assert not has_ended(tasks(sweep))
    assert parent_status(tasks(sweep)) == ("RUNNING", None)
    simulate.run_all(sweep, steps=3)
    assert has_ended(tasks(sweep))
    status, ended = parent_status(tasks(sweep))
    assert status == "FINISHED" and ended is not None


def test_what_needs_a_failed_task_will_not_run(sweep: SweepFolder) -> None:
    claim(sweep.point("cal0")).write_failure("error", "no memory", "OSError")
    assert has_ended(tasks(sweep))
    assert parent_status(tasks(sweep))[0] == "FAILED"
    claim(sweep.point("cal0"), ALIVE)  # tried again, on another host
    assert not has_ended(tasks(sweep))


def test_an_interrupted_task_can_go_on(sweep: SweepFolder) -> None:
    claim(sweep.point("cal0")).write_failure("interrupted", "asked to stop")
    assert not has_ended(tasks(sweep))
    assert parent_status(tasks(sweep))[0] == "KILLED"
    cancelled = {"cal0": Note(cancelled=True)}
    plan = sweep.read_plan()
    found = [read_task(p, sweep.point(p.id), cancelled.get(p.id, Note())) for p in plan.points]
    assert has_ended(found)


def test_a_retry_forgives_the_failure(sweep: SweepFolder) -> None:
    claim(sweep.point("cal0")).write_failure("error", "no memory")
    task = read_task(sweep.read_plan().points[0], sweep.point("cal0"), Note(floor=1))
    assert (task.status, task.failure) == ("SCHEDULED", "")


def test_a_fingerprint_moves_with_the_files_and_the_state(sweep: SweepFolder) -> None:
    folder = sweep.point("tra-0.86-0")
    attempt = claim(folder)

    def now() -> str:
        return read_task(folder.read_point(), folder, Note()).fingerprint()

    first = now()
    attempt.log_path.write_text("a log line changes nothing\n")
    assert now() == first
    simulate.write_steps(attempt, range(2))
    second = now()
    assert second != first
    attempt.write_failure("error", "died")
    third = now()
    assert third not in (first, second)
    simulate.run_train(folder, 3)
    assert now() not in (first, second, third)


def test_a_failure_is_one_line() -> None:
    assert failure_line({"kind": "error", "type": "OSError", "message": "full"}) == (
        "error: OSError: full"
    )
    assert failure_line({"kind": "error", "type": "OSError", "message": "OSError: full"}) == (
        "error: OSError: full"
    )
    assert failure_line({"kind": "timeout", "message": ""}) == "timeout"
    assert failure_line({}) == "error"


def test_the_note_counts_stages_and_names_failures(sweep: SweepFolder) -> None:
    claim(sweep.point("cal0")).write_failure("error", "no memory", "OSError")
    text = parent_note(sweep.read_plan(), tasks(sweep))
    assert "**Sweep demo**: 1 failed, 3 scheduled" in text
    assert "| calibrate |  |  | 1 |  |  |" in text
    assert "error: OSError: no memory" in text


@given(st.lists(st.integers(0, 400), unique=True).map(sorted), st.integers(1, 400))
def test_pictures_are_few_and_their_choice_is_final(steps: list[int], total: int) -> None:
    picked = chosen(steps, total)
    assert len(picked) <= 11
    assert set(picked) <= set(steps)
    if steps:
        assert picked[0] == steps[0]
    for until in range(len(steps)):
        part = chosen(steps[:until], total)
        assert part == picked[: len(part)]


def test_a_run_of_one_hundred_steps_gets_ten_pictures() -> None:
    assert chosen(range(100), 100) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert chosen([0], 0) == [0]
    assert chosen([], 100) == []


def test_rows_of_one_step_join() -> None:
    rows = [(3, 1.0, 0, {"a": 1.0}), (0, 1.0, 0, {"a": 2.0}), (3, 1.0, 0, {"b": 5.0})]
    assert join(rows) == [(0, 1.0, 0, {"a": 2.0}), (3, 1.0, 0, {"a": 1.0, "b": 5.0})]
