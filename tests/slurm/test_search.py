"""Searches on a real Slurm: the controller is a job like any other, and may go like any other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.search.at_work import controller_job, lease_of
from tests.contracts.conftest import site_file
from tests.slurm.real import RealSlurm, run, wait_for
from tests.sweep.search.driver import BRACKET, OPTUNA
from tests.sweep.search.test_on_slurm import assert_sound, controllers, folder, log_of, over, submit

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

LONG = 300.0


def make_files(folder: Path, text: str, partition: str = "main") -> list[Path]:
    """Experiment file, folder of the runs, site file."""
    (folder / "s.yaml").write_text(text)
    return [folder / "s.yaml", folder / "runs", site_file(folder, partition, gpus=0)]


def last_controller(sweep: SweepFolder) -> str:
    """Number of the array of the controller that was submitted last."""
    events = [e for e in Ledger(sweep.ledger_path).read() if e["event"] == "controller"]
    return str(events[-1]["job"])


def begin(files: list[Path]) -> SweepFolder:
    """Submit, and wait until the controller is at work."""
    code, said = submit(files)
    assert code == 0 and "controller: job" in said, said
    sweep = folder(files)
    wait_for(lambda: controllers(sweep) and lease_of(sweep).holder(), 120)
    return sweep


def test_a_bracket_is_narrowed_with_nobody_watching(slurm: RealSlurm, tmp_path: Path) -> None:
    sweep = begin(make_files(tmp_path, BRACKET))
    wait_for(lambda: over(sweep), LONG)
    assert_sound(sweep)
    found = json.loads((sweep.path / "search.json").read_text())["brackets"][0]
    assert found["collapsed"] <= 0.56 < found["stable"] and found["runs"] == 10


@pytest.mark.parametrize("how", ["requeue", "preempt"])
def test_a_controller_that_has_to_leave_comes_back(
    slurm: RealSlurm, tmp_path: Path, how: str
) -> None:
    files = make_files(tmp_path, OPTUNA, "low" if how == "preempt" else "main")
    sweep = begin(files)
    job = last_controller(sweep)
    if how == "requeue":
        run("scontrol", "requeue", f"{job}_0")
    else:
        slurm.sbatch("sleep 2", "--partition=high", "--nodes=2", "--exclusive", "-o/dev/null")
    wait_for(lambda: log_of(sweep).count("controller of o begins") >= 2, LONG)
    wait_for(lambda: over(sweep), LONG)
    assert_sound(sweep, 7)


def test_a_controller_that_was_killed_is_followed_by_the_next(
    slurm: RealSlurm, tmp_path: Path
) -> None:
    files = make_files(tmp_path, OPTUNA)
    sweep = begin(files)
    for process in controllers(sweep):
        os.kill(process.pid, signal.SIGKILL)
    wait_for(lambda: not controller_job(sweep), 60)
    assert begin(files).path == sweep.path
    wait_for(lambda: over(sweep), LONG)
    assert_sound(sweep, 7)


def test_cancelling_ends_the_search(slurm: RealSlurm, tmp_path: Path) -> None:
    files = make_files(tmp_path, OPTUNA)
    sweep = begin(files)
    command = [sys.executable, "-m", "sparrow_lab.cli", "cancel", "o"]
    environment = {**os.environ, "SPARROW_RUNS": str(files[1])}
    said = subprocess.run(command, env=environment, capture_output=True, text=True).stdout
    assert "the search proposes nothing more" in said
    wait_for(lambda: over(sweep), LONG)
    assert "the search was cancelled" in log_of(sweep)


def test_doctor_finds_this_cluster_well(slurm: RealSlurm, tmp_path: Path) -> None:
    site = site_file(tmp_path, "low")
    command = [sys.executable, "-m", "sparrow_lab.cli", "doctor", "--json"]
    places = ["--runs", str(tmp_path / "runs"), "--site", str(site)]
    done = subprocess.run([*command, *places], capture_output=True, text=True)
    found = {check["name"]: check for check in json.loads(done.stdout)}
    assert done.returncode == 0, found
    assert found["job"]["level"] == "ok" and found["node's python"]["level"] == "ok"
    assert "20 s and USR2 before the end" in found["preemption"]["found"]
    site.write_text(site.read_text().replace("partition: low", "partition: lou"))
    done = subprocess.run([*command, *places], capture_output=True, text=True)
    job = {check["name"]: check for check in json.loads(done.stdout)}["job"]
    assert done.returncode == 1 and job["level"] == "fail"
    assert "invalid partition" in job["found"].lower() and f"{site}:1:" in job["remedy"]
