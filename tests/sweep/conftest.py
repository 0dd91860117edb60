"""What the launcher's tests share: workers that can import the fakes, and nothing left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))


@pytest.fixture
def make_sweep(tmp_path: Path) -> Iterator[Callable[[Plan], SweepFolder]]:
    """Write a plan into a folder of its own; at the end no worker of it may live."""

    def make(plan: Plan) -> SweepFolder:
        sweep = SweepFolder(tmp_path / plan.name)
        sweep.write_plan(plan)
        return sweep

    yield make
    left = workers_under(tmp_path)
    for process in left:
        process.kill()
    assert not left


def workers_under(folder: Path) -> list[psutil.Process]:
    """Processes with a path below `folder` on their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or ()
        dead = process.info["status"] == psutil.STATUS_ZOMBIE
        if not dead and process.pid != os.getpid() and any(str(folder) in w for w in words):
            found.append(process)
    return found


def wait_until(what: Callable[[], object], seconds: float = 30) -> None:
    """Wait until `what` is true; fail after so many seconds."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)
