"""MLflow is kept up to date from a process of its own, whose failure is one warning."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep import tracker as tracker_module
from sparrow_lab.sweep.tracker import Tracker
from tests.sweep.watching import wait_until

FAKE_SYNC = """
import sys, time, pathlib
folder = pathlib.Path(sys.argv[1])
with (folder / "calls").open("a") as stream:
    stream.write(" ".join(sys.argv[2:]) + "\\n")
if "--follow" in sys.argv:
    time.sleep(60)
sys.exit({exit_code})
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Tracker]:
    def build(exit_code: int = 0, uri: str | None = None, say: str = "") -> Tracker:
        script = tmp_path / "sync.py"
        script.write_text(say or FAKE_SYNC.format(exit_code=exit_code))
        return Tracker(SweepFolder(tmp_path), uri, [sys.executable, str(script)])

    return build


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_it_follows_and_then_catches_up(make: Callable[..., Tracker], tmp_path: Path) -> None:
    tracker = make(uri="sqlite:///x.db")
    tracker.start()
    wait_until(lambda: calls(tmp_path) == ["--uri sqlite:///x.db --follow"])
    assert tracker.finish() == ""
    assert calls(tmp_path)[1:] == ["--uri sqlite:///x.db"]


def test_a_failure_is_one_warning_with_its_cause(make: Callable[..., Tracker]) -> None:
    tracker = make(say="import sys; sys.exit('warning: database is locked')")
    tracker.start()
    warning = tracker.finish()
    assert warning == "MLflow was not brought up to date: warning: database is locked"


def test_a_missing_program_is_one_warning(tmp_path: Path) -> None:
    tracker = Tracker(SweepFolder(tmp_path), None, [str(tmp_path / "nowhere")])
    tracker.start()
    assert "was not brought up to date" in tracker.finish()


def test_an_endless_import_is_ended(
    make: Callable[..., Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker_module, "LAST_SYNC_S", 0.5)
    tracker = make(say="import time; time.sleep(60)")
    begun = time.monotonic()
    assert "within 0.5 s" in tracker.finish()
    assert time.monotonic() - begun < 20


PARENT = """
import sys, time
from pathlib import Path
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.tracker import Tracker
tracker = Tracker(SweepFolder(Path(sys.argv[1])), None, [sys.executable, "-c", sys.argv[2]])
tracker.start()
print(tracker._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's prctl")
def test_it_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), "import time; time.sleep(60)"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"

    wait_until(gone, 20)
    assert gone()
