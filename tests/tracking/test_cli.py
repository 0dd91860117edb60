"""`sparrow-lab sync` and `sparrow-lab ui`, as a user types them."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from sparrow_lab.cli.sync import Way
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking.importer import Importer
from sparrow_lab.tracking.server import check_port
from tests.tracking import simulate
from tests.tracking.simulate import make_plan, make_sweep


@pytest.fixture
def sweep(runs: Path) -> SweepFolder:
    made = make_sweep(runs, make_plan("demo", [0.86], steps=3))
    simulate.run_calibrate(made.point("cal0"))
    return made


def lab(runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparrow_lab.cli", *arguments],
        env={**os.environ, "SPARROW_RUNS": str(runs)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_sync_says_what_it_did(runs: Path, sweep: SweepFolder) -> None:
    done = lab(runs, "sync", "demo")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("demo -> demo: 1 new runs, 0 unchanged")
    assert "3 tasks not started" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_long_sync_tells_how_far_it_is(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal a line now and then, and none of a short one."""
    seen: list[tuple[int, int]] = []
    Importer(sweep, tell=lambda done, total: seen.append((done, total))).run()
    assert seen == [(done, 4) for done in range(5)]
    now = iter([0.0, 10.0, 40.0, 50.0, 80.0])
    monkeypatch.setattr("sparrow_lab.cli.sync.time.monotonic", lambda: next(now))
    with Way() as way:
        for done in (1, 2, 3, 4):
            way(done, 9)
    told = capsys.readouterr().err.splitlines()
    assert told == ["2 of 9 points, about 2 min left", "4 of 9 points, about 2 min left"]


def test_a_server_that_is_down_is_one_warning_and_1(runs: Path, sweep: SweepFolder) -> None:
    done = lab(runs, "sync", "demo", "--uri", "http://127.0.0.1:9")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: not everything is in MLflow: http://127.0.0.1:9")


def test_a_mistake_is_2_and_no_traceback(runs: Path, sweep: SweepFolder) -> None:
    done = lab(runs, "sync", "demmo")
    assert done.returncode == 2
    assert "did you mean 'demo'" in done.stderr
    done = lab(runs, "sync", "demo", "--uri", "./mlruns")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: --uri: './mlruns' would be MLflow's file store")


def test_a_taken_port_is_said_with_a_free_one(runs: Path, sweep: SweepFolder) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} .* try --port \d+"):
            check_port(port)
        done = lab(runs, "ui", "demo", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --port: port {port} on 127.0.0.1 is taken")
    check_port(port)


def test_ui_without_a_sweep_says_so(tmp_path: Path) -> None:
    done = lab(tmp_path, "ui")
    assert done.returncode == 2
    assert "there is no sweep in this folder yet" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_ui_serves_the_loopback_only_and_ctrl_c_ends_it_all(runs: Path, sweep: SweepFolder) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "sparrow_lab.cli", "ui", "demo", "--port", str(port)],
        env={**os.environ, "SPARROW_RUNS": str(runs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = ""
    try:
        for line in process.stdout:
            said += line
            if "  demo: " in line:
                break
        assert f"MLflow: http://127.0.0.1:{port} " in said, said
        family = psutil.Process(process.pid).children(recursive=True)
        listening = {
            c.laddr
            for child in family
            for c in child.net_connections()
            if c.status == psutil.CONN_LISTEN
        }
        assert listening == {("127.0.0.1", port)}
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 0
        assert "MLflow has ended" in rest and "Traceback" not in rest
        assert time.monotonic() - began < 30
        gone, alive = psutil.wait_procs(family, timeout=10)
        assert not alive and gone
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_imports_at_once_on_no_database_make_one_and_lose_nothing(tmp_path: Path) -> None:
    made = make_sweep(tmp_path, make_plan("demo", [0.86], steps=3))
    simulate.run_all(made, steps=3)
    command = [sys.executable, "-m", "sparrow_lab.cli", "sync", "demo"]
    environment = {**os.environ, "SPARROW_RUNS": str(tmp_path)}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    said = [process.communicate(timeout=500) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert sorted(b"4 new runs" in out for out, _ in said) == [False, False, True]
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        (count,) = connection.execute("select count(*) from runs").fetchone()
    connection.close()
    assert count == 5
    assert not (tmp_path / "mlflow.db.lock").exists()
