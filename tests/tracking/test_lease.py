"""One importer at a time, and a dead one does not block the next."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.runs.process import this_process
from sparrow_lab.tracking import lease
from sparrow_lab.tracking.lease import Lease, LeaseBusy, LeaseLost


def test_a_living_owner_is_respected_and_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lease(path), pytest.raises(LeaseBusy, match=r"process \d+ on "):
        Lease(path).__enter__()
    assert not path.exists()
    with Lease(path):
        assert path.exists()


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = "import sys; from sparrow_lab.tracking.lease import Lease; from pathlib import Path\n"
    code += "Lease(Path(sys.argv[1])).__enter__(); import os; os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.exists()
    with Lease(path, wait_s=5) as held:
        held.renew()
    assert list(tmp_path.iterdir()) == []


def test_a_pid_given_to_another_process_is_not_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text(json.dumps({**this_process(), "start": 12.0, "token": "old"}))
    with Lease(path, wait_s=5):
        assert json.loads(path.read_text())["token"] != "old"


def test_another_host_counts_as_alive_until_it_falls_silent(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    other = {"host": "node7", "pid": 1, "start": 0.0, "token": "t"}
    path.write_text(json.dumps({**other, "time": time.time() - 30}))
    with pytest.raises(LeaseBusy, match="node7"):
        Lease(path).__enter__()
    path.write_text(json.dumps({**other, "time": time.time() - 2 * lease.STALE_S}))
    with Lease(path, wait_s=5):
        pass


def test_an_owner_that_was_replaced_writes_no_more(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lease(path) as held:
        path.write_text(json.dumps({**this_process(), "token": "somebody else"}))
        with pytest.raises(LeaseLost, match="taken over"):
            held.renew()
    assert json.loads(path.read_text())["token"] == "somebody else"


def test_renewing_shows_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    with Lease(path) as held:
        first = json.loads(path.read_text())["time"]
        time.sleep(0.01)
        held.renew()
        assert json.loads(path.read_text())["time"] > first


def _critical(path: str, log: str) -> None:
    for _ in range(15):
        with Lease(Path(path), wait_s=60), open(log, "a") as stream:
            stream.write("in\n")
            stream.flush()
            time.sleep(0.002)
            stream.write("out\n")


@pytest.mark.slow
def test_no_two_processes_are_inside_at_once(tmp_path: Path) -> None:
    # A dead lock lies there at the start, so that the takeover is raced for as well.
    (tmp_path / "lock").write_text(json.dumps({**this_process(), "start": 1.0, "token": "x"}))
    context = multiprocessing.get_context("spawn")
    arguments = (str(tmp_path / "lock"), str(tmp_path / "log"))
    workers = [context.Process(target=_critical, args=arguments) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert (tmp_path / "log").read_text().split() == ["in", "out"] * 60
