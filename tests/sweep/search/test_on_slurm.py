"""The controller as a job of a pretended Slurm: one at a time, and killed at will."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.verdict import DECIDED
from sparrow_lab.sweep.search.at_work import controller_job, lease_of
from sparrow_lab.sweep.search.trials import read_trials
from tests.sweep.search.driver import BRACKET, OPTUNA
from tests.sweep.search.stages import starts
from tests.sweep.watching import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SITE = "partition: main\ncpus: 1\ntime: 60\ngrace: 5\ncache: null\n"


@pytest.fixture
def files(tmp_path: Path, request: pytest.FixtureRequest) -> list[Path]:
    (tmp_path / "s.yaml").write_text(getattr(request, "param", OPTUNA))
    (tmp_path / "site.yaml").write_text(SITE)
    return [tmp_path / "s.yaml", tmp_path / "runs", tmp_path / "site.yaml"]


def submit(files: list[Path], *overrides: str) -> tuple[int, str]:
    """The command in a process of its own; its exit code and what it said."""
    command = [sys.executable, "-m", "tests.sweep.search.on_fake", *map(str, files), *overrides]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    return done.returncode, done.stdout


def begin(files: list[Path], *overrides: str) -> None:
    """The command, which must go well."""
    code, said = submit(files, *overrides)
    assert code == 0, said


def folder(files: list[Path]) -> SweepFolder:
    name = "b" if "method: bracket" in files[0].read_text() else "o"
    return SweepFolder(files[1] / name)


def controllers(sweep: SweepFolder) -> list[psutil.Process]:
    """Live processes of controllers of this sweep."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        ours = "sparrow_lab.sweep.search" in words and str(sweep.path.resolve()) in words
        if ours and process.info["status"] != psutil.STATUS_ZOMBIE and "python" in words[0]:
            found.append(process)
    return found


def assert_sound(sweep: SweepFolder, count: int | None = None) -> None:
    """Every proposal once and told, every point of the plan done and begun once."""
    events = Ledger(sweep.ledger_path).read()
    trials = read_trials(events)
    assert count is None or len(trials) == count
    assert [e["trial"] for e in events if e["event"] == "proposed"] == list(range(len(trials)))
    assert all(t.outcome and t.outcome.kind in ("done", *DECIDED) for t in trials)
    for point in sweep.read_plan().points:
        result = sweep.point(point.id).read_result()
        assert result is not None, point.short()
        if not result["alias_of"]:
            assert starts(sweep.point(point.id).path) == 1, point.short()


def over(sweep: SweepFolder) -> bool:
    return not controller_job(sweep) and not controllers(sweep)


def log_of(sweep: SweepFolder) -> str:
    logs = sorted(sweep.path.glob("submitted/*/0.log"))
    return "".join(log.read_text() for log in logs if "controller of" in log.read_text())


@pytest.mark.parametrize("files", [OPTUNA, BRACKET], ids=["optuna", "bracket"], indirect=True)
def test_it_runs_to_its_end_without_anybody(fake_slurm: FakeSlurm, files: list[Path]) -> None:
    code, said = submit(files)
    assert code == 0 and "controller: job " in said, said
    sweep = folder(files)
    wait_until(lambda: over(sweep), 240)
    assert_sound(sweep)
    ending = "all 7 trials have ended" if sweep.name == "o" else "no other run lies between them"
    assert ending in log_of(sweep)
    assert lease_of(sweep).holder() is None
    code, said = submit(files)
    assert code == 0 and ending in said and "controller: job" not in said, said


def test_a_second_controller_leaves(fake_slurm: FakeSlurm, files: list[Path]) -> None:
    begin(files)
    sweep = folder(files)
    wait_until(lambda: lease_of(sweep).holder(), 60)
    second = subprocess.run(
        [sys.executable, "-m", "sparrow_lab.sweep.search", str(sweep.path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert second.returncode == 0 and "another controller is at work (job" in second.stdout
    code, said = submit(files)
    assert code == 0 and "the controller goes on with this file: job" in said, said
    wait_until(lambda: over(sweep), 240)
    assert_sound(sweep, 7)


def test_more_trials_are_taken_up_by_the_controller_at_work(
    fake_slurm: FakeSlurm, files: list[Path]
) -> None:
    begin(files, "sweep.optuna.trials=3")
    sweep = folder(files)
    wait_until(lambda: lease_of(sweep).holder(), 60)
    code, said = submit(files, "sweep.optuna.trials=5")
    assert code == 0 and "goes on with this file" in said
    wait_until(lambda: over(sweep), 240)
    assert_sound(sweep, 5)


def test_it_is_started_again_when_preempted(fake_slurm: FakeSlurm, files: list[Path]) -> None:
    begin(files)
    sweep = folder(files)
    wait_until(lambda: controllers(sweep) and lease_of(sweep).holder(), 60)
    job = next(e["job"] for e in Ledger(sweep.ledger_path).read() if e["event"] == "controller")
    subprocess.run(["scancel", "--signal=USR2", f"{job}_0"], check=True)
    wait_until(lambda: "will be started again" in log_of(sweep), 60)
    wait_until(lambda: over(sweep), 240)
    assert_sound(sweep, 7)
    assert log_of(sweep).count("controller of o begins") == 2


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("files", [OPTUNA, BRACKET], ids=["optuna", "bracket"], indirect=True)
def test_kills_at_random_instants(fake_slurm: FakeSlurm, files: list[Path], seed: int) -> None:
    """The command and the controller by -9, again and again; then once to the end."""
    dice = random.Random(seed)
    sweep = folder(files)
    for _ in range(5):
        command = [sys.executable, "-m", "tests.sweep.search.on_fake", *map(str, files)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.5, 6))
        process.kill()
        process.wait()
        for controller in controllers(sweep):
            if dice.random() < 0.8:
                try:
                    os.kill(controller.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
    code, said = submit(files)
    assert code == 0, said
    wait_until(lambda: over(sweep), 300)
    code, said = submit(files)
    assert code == 0, said
    wait_until(lambda: over(sweep), 300)
    assert_sound(sweep, 7 if sweep.name == "o" else None)
