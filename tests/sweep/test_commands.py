"""status, logs, cancel and retry, as a user calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sparrow_lab.cli import main
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan
from sparrow_lab.runs.process import this_process
from sparrow_lab.stages import run_task
from sparrow_lab.sweep import decide
from sparrow_lab.sweep.launch import Launcher
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.read_logs import find_log, print_log
from sparrow_lab.sweep.run import launch
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes
from tests.sweep.watching import (
    finish,
    kill_worker,
    start_launcher,
    step_of,
    wait_until,
    workers_under,
)

MakeSweep = Callable[[Plan], SweepFolder]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Call `sparrow-lab` in this process; its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--runs", str(tmp_path)])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def tree(folder: Path) -> dict[str, tuple[int, float]]:
    """Every file with its size and time, to see that nothing was written."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p): (p.stat().st_size, p.stat().st_mtime) for p in files}


@pytest.fixture
def mixed(make_sweep: MakeSweep) -> SweepFolder:
    """A sweep with an alias, a failure with a traceback, something held, and something left."""
    plan = fakes.make_plan(
        taus=[0.8, 0.9], seeds=[0, 1, 2], digest="same", of={(0.8, 1): {"fail_at": 2}}
    )
    sweep = make_sweep(plan)
    path = str(sweep.path)
    for ids in (["c0000000", "5c000000", "5c000001"], ["7a000000", "e0000000"], ["7a001000"]):
        run_task(path, ids, fakes.STAGES)
    with pytest.raises(ValueError, match="no luck"):
        run_task(path, ["7a000001"], fakes.STAGES)
    return sweep


def states_of(sweep: SweepFolder) -> dict[str, str]:
    return {i: s.state for i, s in read_states(sweep).items()}


# ------------------------------------------------------------------- status


def test_status_tells_each_state_and_writes_nothing(mixed: SweepFolder, call: Call) -> None:
    before = tree(mixed.path)
    code, out, _ = call("status", "fake", "--json")
    assert code == 0
    data = json.loads(out)
    points = {p["id"]: p for p in data["points"]}
    assert points["7a000001"]["state"] == "failed"
    assert points["7a000001"]["reason"] == "ValueError: no luck at step 2"
    assert points["e0000001"]["state"] == "held"
    assert points["7a001000"]["same_as"] == "7a000000"
    assert points["7a000002"]["state"] == "planned"
    assert points["7a000000"]["label"] == {"model": "tiny-s", "tau": 0.8, "seed": 0}
    assert data["counts"]["done"] == 6 and data["counts"]["failed"] == 1
    assert data["stages"]["train"] == {"done": 2, "failed": 1, "planned": 3}
    assert data["launcher"] is None
    code, out, _ = call("status", "fake")
    assert code == 0
    for words in ("6 of 15 points done", "no luck at step 2", "same as tau=0.8,seed=0 (7a000000)"):
        assert words in out.replace("\n", " ")
    assert "7a000002"[:8] in call("status", "fake", "--all")[1]
    assert tree(mixed.path) == before


def test_status_watch_ends_when_nothing_runs(mixed: SweepFolder, call: Call) -> None:
    assert call("status", "fake", "--watch")[0] == 0


def test_a_sweep_that_is_not_there_is_named_with_the_nearest(
    mixed: SweepFolder, call: Call
) -> None:
    code, out, err = call("status", "fakee")
    assert code == 2 and out == ""
    assert err.startswith("error: SWEEP: no sweep 'fakee'") and "did you mean 'fake'" in err


def test_a_worker_that_vanished_is_lost(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train"),)))
    sweep.point("aa00").new_attempt({**this_process(), "start": 1.0})
    state = read_states(sweep)["aa00"]
    assert (state.state, state.reason) == ("lost", "the worker vanished")


def test_a_live_attempt_of_another_host_runs_while_its_files_move(make_sweep: MakeSweep) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train"),)))
    attempt = sweep.point("aa00").new_attempt({"host": "node7", "pid": 1, "start": 0.0})
    assert states_of(sweep) == {"aa00": "running"}
    long_ago = time.time() - 10_000
    os.utime(attempt.claim_path, (long_ago, long_ago))
    assert states_of(sweep) == {"aa00": "lost"}


# ------------------------------------------------------------------- logs


def test_logs_end_with_the_traceback(mixed: SweepFolder, call: Call) -> None:
    for text in ("7a000001", "7a00000", "tau=0.8,seed=1"):
        if text == "7a00000":
            assert call("logs", text)[0] == 2  # means three points
            continue
        code, out, _ = call("logs", text)
        assert code == 0
        assert "train model=tiny-s,tau=0.8,seed=1 (7a000001), attempt 1" in out
        assert "Traceback" in out
        assert out.rstrip().endswith("ValueError: no luck at step 2")
        assert out.count("Traceback") == 1


def test_logs_of_an_alias_are_those_of_the_run(mixed: SweepFolder, call: Call) -> None:
    code, out, _ = call("logs", "tau=0.9,seed=0", "--stage", "train")
    assert code == 0 and "(7a000000), attempt 1" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tau=0.7", "no point 'tau=0.7' in fake"),
        ("zzz", "no point 'zzz'"),
        ("tau=0.8", "means 3 points: 7a000000 model=tiny-s,tau=0.8,seed=0;"),
        ("7a000002", "no such log yet; it is planned"),
    ],
)
def test_logs_that_cannot_be_shown_say_why(
    mixed: SweepFolder, call: Call, text: str, said: str
) -> None:
    code, out, err = call("logs", text)
    assert code == 2 and out == ""
    assert said in err and err.count("\n") == 1


def test_logs_of_a_killed_worker_end_with_what_is_known(make_sweep: MakeSweep, call: Call) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train", vanish_at=2),)))
    Launcher(sweep, Options(retries=0), stages=fakes.STAGES).run()
    code, out, _ = call("logs", "aa00")
    assert code == 0
    assert out.rstrip().endswith("lost: the worker was killed from outside (out of memory?)")


def test_following_a_log_ends_with_the_attempt(make_sweep: MakeSweep, tmp_path: Path) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train", sleep=0.2, fail_at=4),)))
    worker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from sparrow_lab.stages import run_task; from tests.sweep import fakes; import sys;"
            "run_task(sys.argv[1], ['aa00'], fakes.STAGES)",
            str(sweep.path),
        ],
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: sweep.point("aa00").attempts())
    folder, attempt = find_log("aa00", "fake", root=tmp_path)
    with (tmp_path / "out.txt").open("w") as out:
        print_log(folder, attempt, out, follow=True)
    worker.wait()
    assert (tmp_path / "out.txt").read_text().rstrip().endswith("no luck at step 4")


# ------------------------------------------------------------------- cancel and retry


def test_cancel_some_of_what_has_not_begun(mixed: SweepFolder, call: Call) -> None:
    code, out, _ = call("cancel", "fake", "--where", "seed=2")
    assert code == 0 and "4 points cancelled, 0 of them running until now" in out
    states = Launcher(mixed, Options(parallel=2), stages=fakes.STAGES).run()
    found = {i: s.state for i, s in states.items()}
    assert [found[i] for i in ("7a000002", "7a001002", "e0000002")] == ["cancelled"] * 3
    assert found["7a001001"] == "done"
    assert call("cancel", "fake", "--where", "seed=7")[0] == 2


def test_cancel_asks_a_running_point_to_save(make_sweep: MakeSweep, call: Call) -> None:
    points = [
        fakes.make_point(f"aa0{i}", "train", label={"seed": i}, steps=60, sleep=0.05, every=100)
        for i in range(2)
    ]
    sweep = make_sweep(Plan("fake", {}, tuple(points)))
    launcher = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "aa00") > 3)
    code, out, _ = call("cancel", "fake", "--where", "seed=0")
    assert code == 0 and "1 point cancelled, 1 of them running until now" in out
    code, said = finish(launcher)
    assert code == 0, said
    assert states_of(sweep) == {"aa00": "cancelled", "aa01": "done"}
    assert list(sweep.point("aa00").attempts()[0].checkpoints.iterdir())
    # the same command leaves it alone; retry --cancelled takes it up where it was
    assert finish(start_launcher(sweep))[0] == 0
    assert states_of(sweep)["aa00"] == "cancelled"


def test_cancel_without_a_launcher_ends_the_workers(make_sweep: MakeSweep, call: Call) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train", deaf=60),)))
    launcher = start_launcher(sweep)
    wait_until(lambda: sweep.point("aa00").attempts())
    launcher.kill()
    launcher.communicate()
    code, out, _ = call("cancel", "fake", "--grace", "1")
    assert code == 0 and "1 point cancelled, 1 of them running until now" in out
    assert workers_under(sweep.path) == []
    assert states_of(sweep) == {"aa00": "cancelled"}


def retry(sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch, **kwargs: Any) -> tuple[int, str]:
    """`retry` with the fake stages."""
    monkeypatch.setattr(decide, "launch", partial(launch, stages=fakes.STAGES))
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115
    code = decide.retry(
        sweep, kwargs.get("states", ("failed", "lost")), kwargs.get("where", []), console
    )
    return code, console.export_text()


def test_retry_runs_what_failed_and_what_it_held_and_nothing_else(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fakes.make_plan(taus=[0.8, 0.9], of={(0.8, 0): {"fail_first": 2}})
    sweep = make_sweep(plan)
    only = frozenset({"c0000000", "5c000000", "7a000000", "e0000000"})
    Launcher(sweep, Options(retries=1, only=only), stages=fakes.STAGES).run()
    assert states_of(sweep)["7a000000"] == "failed"
    code, said = retry(sweep, monkeypatch)
    assert code == 0 and "trying 1 failed point again, and what waits for that: 1 point" in said
    found = states_of(sweep)
    assert found["7a000000"] == found["e0000000"] == "done"
    assert found["7a001000"] == "planned"
    assert [a.number for a in sweep.point("7a000000").attempts()] == [1, 2, 3]
    assert fakes.starts(sweep.point("c0000000").path) == 1
    code, said = retry(sweep, monkeypatch)
    assert code == 0 and "no point to retry" in said


def test_retry_only_where(mixed: SweepFolder, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    code, said = retry(mixed, monkeypatch, where=["seed=0"])
    assert code == 0 and "no point to retry" in said
    assert call("retry", "fake")[0] == 2  # neither --failed nor --cancelled


def test_retry_takes_cancelled_points_up_again(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    sweep = make_sweep(Plan("fake", {}, (fakes.make_point("aa00", "train", label={"seed": 0}),)))
    call("cancel", "fake")
    assert states_of(sweep) == {"aa00": "cancelled"}
    code, _ = retry(sweep, monkeypatch, states=("cancelled",))
    assert code == 0 and states_of(sweep) == {"aa00": "done"}


def test_a_running_launcher_takes_up_what_is_retried(
    make_sweep: MakeSweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (
        fakes.make_point("aa00", "train", fail_first=1),
        fakes.make_point("aa01", "train", steps=100, sleep=0.1),
    )
    sweep = make_sweep(Plan("fake", {}, points))
    launcher = start_launcher(sweep, "retries=0")
    wait_until(lambda: states_of(sweep)["aa00"] == "failed")
    code, said = retry(sweep, monkeypatch)
    assert code == 0 and "handed to the running launcher" in said
    code, said = finish(launcher)
    assert code == 0, said
    assert states_of(sweep) == {"aa00": "done", "aa01": "done"}


def test_a_cancelled_sweep_is_no_failure(make_sweep: MakeSweep, call: Call) -> None:
    sweep = make_sweep(fakes.make_plan(taus=[0.8]))
    call("cancel", "fake", "--where", "stage=train")
    code, said = finish(start_launcher(sweep))
    assert code == 0, said
    assert "retry fake --cancelled" in said
    assert states_of(sweep)["e0000000"] == "held"
    assert "cancelled" in {e["event"] for e in Ledger(sweep.ledger_path).read()}


# ------------------------------------------------------------------- light to start


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status", "fake"], ["status", "fake", "--json"]]
)
def test_nothing_heavy_is_imported(mixed: SweepFolder, arguments: list[str]) -> None:
    code = (
        "import sys\nfrom sparrow_lab.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as ended:\n"
        "    assert not ended.code, ended.code\n"
        "heavy = ['torch', 'transformers', 'mlflow', 'pandas', 'matplotlib', 'submitit']\n"
        "found = [name for name in heavy if name in sys.modules]\n"
        "assert not found, found\n"
    )
    more = ["--runs", str(mixed.path.parent)] if arguments[0] == "status" else []
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments, *more], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_watching_while_it_runs_shows_progress(make_sweep: MakeSweep, call: Call) -> None:
    point = fakes.make_point("aa00", "train", steps=100, sleep=0.05, label={"tau": 0.86})
    sweep = make_sweep(Plan("fake", {}, (point,)))
    launcher = start_launcher(sweep)
    wait_until(lambda: step_of(sweep, "aa00") > 10)
    data = json.loads(call("status", "fake", "--json")[1])
    progress = data["points"][0]["progress"]
    assert progress["total"] == 100 and progress["done"] > 10
    assert progress["acceptance/p05"] == 0.9 and progress["left_s"] > 0
    assert data["launcher"]["pid"] == launcher.pid
    stopper = threading.Timer(1, kill_worker, (sweep, "aa00", 15))
    stopper.start()
    code, out, _ = call("status", "fake")
    assert code == 0 and "tau=0.86" in out and "/100" in out
    stopper.join()
    assert finish(launcher)[0] == 0
