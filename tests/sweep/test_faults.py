"""Kills at any time, of workers and of the launcher: every point ends with one true result."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep import launch as launch_module
from sparrow_lab.sweep.jobs import Job, start_job
from sparrow_lab.sweep.launch import Launcher
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.settle import settle
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes
from tests.sweep.watching import (
    finish,
    kill_worker,
    start_launcher,
    step_of,
    wait_until,
    worker_pid,
    workers_under,
)

MakeSweep = Callable[[Plan], SweepFolder]


def train_points(count: int, **settings: Any) -> Plan:
    points = [fakes.make_point(f"7a0{i:02d}", "train", seed=i, **settings) for i in range(count)]
    return Plan("fake", {}, tuple(points))


def has_come_to(sweep: SweepFolder, point_id: str, attempt: int, step: int) -> bool:
    """Whether a point's attempt of that number has got beyond a step."""
    return len(sweep.point(point_id).attempts()) == attempt and step_of(sweep, point_id) > step


def assert_true_results(sweep: SweepFolder) -> None:
    """Every point is done, and its value is that of a run that nobody disturbed."""
    for point in sweep.read_plan().points:
        folder = sweep.point(point.id)
        result = folder.read_result()
        assert result is not None, f"{point.id} has no result"
        if point.stage != "train":
            continue
        assert result["metrics"]["value"] == fakes.expected(point)
        value, rows = 1, read_events(folder).rows
        assert [row[0] for row in rows] == list(range(1, point.config["train"]["steps"] + 1))
        for step, _, _, metrics in rows:
            value = fakes.following(value, step, point.config["seed"])
            assert metrics["reward/mean"] == value


def test_a_killed_worker_is_replaced_and_goes_on(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=30, every=5, sleep=0.05))
    launcher = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "7a000") >= 12)
    kill_worker(sweep, "7a000")
    code, said = finish(launcher)
    assert code == 0, said
    assert "trying again" in said
    assert_true_results(sweep)
    first, second = sweep.point("7a000").attempts()
    assert (first.read_failure() or {})["kind"] == "lost"
    rows = [row[0] for row in read_events(sweep.point("7a000")).rows if row[2] == second.number]
    assert rows[0] >= 11 and rows[0] % 5 == 1  # from a checkpoint, not from the start


def test_a_worker_that_is_always_killed_is_lost_until_the_next_run(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=6, every=2, vanish_at=5))
    launcher = Launcher(sweep, Options(retries=1), stages=fakes.STAGES)
    states = launcher.run()
    assert states["7a000"].state == "lost"
    assert len(sweep.point("7a000").attempts()) == 2
    assert read_states(sweep)["7a000"].state == "lost"
    again = Launcher(sweep, Options(retries=0), stages=fakes.STAGES).run()
    assert again["7a000"].state == "lost"
    assert len(sweep.point("7a000").attempts()) == 3


def test_a_done_point_whose_file_is_damaged_is_made_again(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.9]))
    Launcher(sweep, Options(), stages=fakes.STAGES).run()
    (made,) = (p for p in sweep.points() if (p.path / "schedule.json").exists())
    whole = (made.path / "schedule.json").read_bytes()
    (made.path / "schedule.json").write_bytes(whole[:9])
    states = read_states(sweep)
    assert {i for i, s in states.items() if s.state != "done"} == {made.id}
    assert states[made.id].state == "lost"
    assert states[made.id].reason.startswith("schedule.json is damaged")
    Launcher(sweep, Options(), stages=fakes.STAGES).run()
    assert (made.path / "schedule.json").read_bytes() == whole
    assert [len(p.attempts()) for p in sweep.points()].count(2) == 1
    assert_true_results(sweep)


def test_a_killed_launcher_finds_its_workers_again(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(2, steps=100, every=10, sleep=0.05))
    first = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "7a000") > 3 and step_of(sweep, "7a001") > 3)
    first.kill()
    first.wait()
    pids = [worker_pid(sweep, p) for p in ("7a000", "7a001")]
    assert None not in pids
    assert {s.state for s in read_states(sweep).values()} == {"running"}
    second = start_launcher(sweep)
    code, said = finish(second)
    assert code == 0, said
    assert said.count("still running") == 2
    assert_true_results(sweep)
    for point in sweep.points():
        assert fakes.starts(point.path) == 1 and len(point.attempts()) == 1


def test_a_launcher_killed_before_its_worker_claims_finds_it_by_its_token(
    make_sweep: MakeSweep,
) -> None:
    sweep = make_sweep(train_points(1, steps=5))
    first = start_launcher(sweep)
    wait_until(lambda: workers_under(sweep.path))
    first.kill()
    first.wait()
    assert read_states(sweep)["7a000"].state in ("running", "done")
    code, said = finish(start_launcher(sweep))
    assert code == 0, said
    assert_true_results(sweep)
    assert fakes.starts(sweep.point("7a000").path) == 1


@pytest.mark.parametrize("asked", [False, True])
def test_a_launcher_that_dies_around_the_submission(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """The intent is in the ledger; whether the scheduler was asked is found out."""
    sweep = make_sweep(train_points(1))
    real = start_job
    started: list[Job] = []

    def dies(*arguments: object) -> Job:
        if asked:
            started.append(real(*arguments))  # type: ignore[arg-type]
        raise SystemExit

    monkeypatch.setattr(launch_module, "start_job", dies)
    with pytest.raises(SystemExit):
        Launcher(sweep, Options(), stages=fakes.STAGES).run()
    monkeypatch.setattr(launch_module, "start_job", real)
    assert [e["event"] for e in Ledger(sweep.ledger_path).read()][1] == "submitted"
    states = Launcher(sweep, Options(), stages=fakes.STAGES).run()
    assert states["7a000"].state == "done"
    assert_true_results(sweep)
    assert fakes.starts(sweep.point("7a000").path) == 1
    assert len(list(sweep.jobs.iterdir())) == 1


def test_two_launchers_do_not_run_one_sweep(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=60, sleep=0.05))
    first = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "7a000") > 0)
    code, said = finish(start_launcher(sweep))
    assert code == 2
    assert f"another sparrow-lab is running this sweep (pid {first.pid}" in said
    assert finish(first)[0] == 0
    assert_true_results(sweep)
    assert fakes.starts(sweep.point("7a000").path) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_the_same_command_goes_on(make_sweep: MakeSweep, number: int) -> None:
    sweep = make_sweep(train_points(3, steps=40, every=50, sleep=0.05))
    launcher = start_launcher(sweep)
    wait_until(lambda: min(step_of(sweep, p) for p in ("7a000", "7a001")) > 5)
    launcher.send_signal(number)
    code, said = finish(launcher, 40)
    assert code == 128 + number, said
    assert "workers may take 20 s to save" in said
    assert workers_under(sweep.path) == []
    states = read_states(sweep)
    assert [s.state for s in states.values()] == ["interrupted", "interrupted", "planned"]
    code, said = finish(start_launcher(sweep))
    assert code == 0, said
    assert_true_results(sweep)
    for point in ("7a000", "7a001"):
        rows = read_events(sweep.point(point)).rows
        resumed = [row[0] for row in rows if row[2] == 2]
        assert len(resumed) < 40 and [row[2] for row in rows[:5]] == [1] * 5


def test_a_second_ctrl_c_is_harder(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, deaf=60))
    launcher = start_launcher(sweep)
    wait_until(lambda: worker_pid(sweep, "7a000"))
    launcher.send_signal(signal.SIGINT)
    time.sleep(1)
    assert launcher.poll() is None
    launcher.send_signal(signal.SIGINT)
    code, said = finish(launcher, 15)
    assert code == 130, said
    assert "stopping at once" in said
    assert workers_under(sweep.path) == []
    assert read_states(sweep)["7a000"].state == "interrupted"


def test_a_worker_that_does_not_leave_is_killed_after_the_grace(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, deaf=60))
    launcher = start_launcher(sweep, "grace_s=1")
    wait_until(lambda: worker_pid(sweep, "7a000"))
    launcher.send_signal(signal.SIGINT)
    code, _ = finish(launcher, 20)
    assert code == 130
    assert workers_under(sweep.path) == []
    assert "grace" in read_states(sweep)["7a000"].reason


def test_ctrl_c_in_the_first_instant_leaves_nothing_running(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(2, steps=200, sleep=0.05))
    launcher = start_launcher(sweep)
    wait_until(lambda: workers_under(sweep.path))
    launcher.send_signal(signal.SIGINT)
    code, said = finish(launcher, 40)
    assert code == 130, said
    assert workers_under(sweep.path) == []


def test_ctrl_c_while_a_lost_point_starts_again_is_a_stop(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=200, sleep=0.05))
    launcher = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "7a000") > 0)
    kill_worker(sweep, "7a000")
    wait_until(lambda: len(list(sweep.jobs.iterdir())) == 2)
    launcher.send_signal(signal.SIGINT)
    code, said = finish(launcher, 40)
    assert code == 130, said
    assert workers_under(sweep.path) == []


def test_a_signal_from_outside_is_no_failure(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=30, every=50, sleep=0.05))
    launcher = start_launcher(sweep, "retries=0")
    for attempt in (1, 2):
        wait_until(partial(has_come_to, sweep, "7a000", attempt, step=5 * attempt))
        kill_worker(sweep, "7a000", signal.SIGTERM)
    code, said = finish(launcher)
    assert code == 0, said
    assert_true_results(sweep)
    assert [(a.read_failure() or {}).get("kind") for a in sweep.point("7a000").attempts()] == [
        "interrupted",
        "interrupted",
        None,
    ]


def test_a_killed_controller_does_not_lose_its_worker(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1, steps=60, sleep=0.05))
    launcher = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "7a000") > 3)
    worker = worker_pid(sweep, "7a000")
    for process in workers_under(sweep.path):
        if process.pid != worker:
            process.kill()
    code, said = finish(launcher)
    assert code == 0, said
    assert_true_results(sweep)
    assert fakes.starts(sweep.point("7a000").path) == 1


def test_two_workers_on_one_point_give_one_result(make_sweep: MakeSweep) -> None:
    """As after a node that was thought dead: the later claim wins, the earlier one stops."""
    sweep = make_sweep(train_points(1, steps=300, every=10, sleep=0.05))
    jobs = []
    for token in ("first000", "second00"):
        jobs.append(start_job(sweep, token, ["7a000"], 1, fakes.STAGES))
        wait_until(lambda: len(sweep.point("7a000").attempts()) == len(jobs))
        wait_until(lambda: step_of(sweep, "7a000") > 3)
    wait_until(lambda: not any(job.alive() for job in jobs))
    assert_true_results(sweep)
    result = sweep.point("7a000").read_result()
    assert result is not None and result["attempt"] == 2
    first = sweep.point("7a000").attempts()[0].read_failure() or {}
    assert first["kind"] == "interrupted" and "later attempt" in first["message"]


@pytest.mark.parametrize("started", [False, True])
def test_a_worker_that_never_claimed_is_a_failure_with_its_cause(
    make_sweep: MakeSweep, started: bool
) -> None:
    """Killed while it started: lost, and tried again. Not able to start: an error."""
    sweep = make_sweep(train_points(1))
    folder = sweep.jobs / "gone0000"
    folder.mkdir(parents=True)
    (folder / "1_0_log.out").write_text("Traceback\nModuleNotFoundError: No module named 'x'\n")
    if started:
        (folder / "1_0_result.pkl").write_bytes(pickle.dumps(("error", "Traceback ...")))
    assert settle(Job(sweep, "gone0000", ["7a000"]), 60) == {"7a000": "ended"}
    state = read_states(sweep)["7a000"]
    assert state.state == ("failed" if started else "lost")
    assert state.reason == "ModuleNotFoundError: No module named 'x'"


def test_a_worker_killed_while_it_starts_is_tried_again(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(train_points(1))
    launcher = start_launcher(sweep, "retries=1")
    wait_until(lambda: workers_under(sweep.path))
    for process in workers_under(sweep.path):
        process.kill()
    code, said = finish(launcher)
    assert code == 0, said
    assert "trying again" in said
    assert_true_results(sweep)


def test_an_unknown_stage_is_a_failure(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "fit"),)))
    states = Launcher(sweep, Options(), stages=fakes.STAGES).run()
    assert states["aa00"].state == "failed" and "no stage 'fit'" in states["aa00"].reason


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_of_everything_at_random(make_sweep: MakeSweep, seed: int) -> None:
    """The launcher by -9 three times, workers by -9 and TERM all along; then once to the end."""
    dice = random.Random(seed)
    plan = fakes.make_plan(taus=[0.8, 0.9], seeds=[0, 1], steps=60, every=4, sleep=0.04)
    sweep = make_sweep(plan)
    for _ in range(3):
        launcher = start_launcher(sweep, "retries=100", "parallel=3")
        deadline = time.monotonic() + dice.uniform(1, 8)
        while time.monotonic() < deadline and launcher.poll() is None:
            time.sleep(dice.uniform(0.1, 1.5))
            victims = workers_under(sweep.path)
            if victims and dice.random() < 0.7:
                number = dice.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                try:
                    os.kill(dice.choice(victims).pid, number)
                except ProcessLookupError:
                    continue
        launcher.kill()
        launcher.communicate()
        if dice.random() < 0.5 and sweep.ledger_path.exists():
            tear(sweep.ledger_path)
    code, said = finish(start_launcher(sweep, "retries=100", "parallel=3"), 200)
    assert code == 0, said
    assert_true_results(sweep)
    assert all(s.state == "done" for s in read_states(sweep).values())


def tear(path: Path) -> None:
    """Leave the last line half written, as a machine that lost power might."""
    data = path.read_bytes()
    path.write_bytes(data[:-7])
