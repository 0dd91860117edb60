"""What is refused before anything starts, the lock, and the breaker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import is_alive, this_process
from sparrow_lab.sweep.guards import Breaker, check_folder, default_parallel, signature
from sparrow_lab.sweep.lock import lock_owner, sweep_lock

Usage = namedtuple("Usage", "total used free")


def test_a_folder_that_can_be_written_is_made(tmp_path: Path) -> None:
    check_folder(tmp_path / "runs" / "a")
    assert list((tmp_path / "runs" / "a").iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="cannot write into the output folder") as caught:
        check_folder(tmp_path / "runs" / "a")
    assert caught.value.where == str(tmp_path / "runs" / "a")


def test_a_folder_that_may_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(UserError, match="Permission denied"):
        check_folder(tmp_path)


def test_a_full_disk_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 5 * 2**20))
    with pytest.raises(UserError, match="only 5 MB free"):
        check_folder(tmp_path)


def test_parallel_fits_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert default_parallel(1) == cores
    assert default_parallel(10 * cores) == 1


# ------------------------------------------------------------------- the lock


def test_the_lock_is_held_once_and_freed(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    assert lock_owner(sweep) is None
    with sweep_lock(sweep):
        owner = lock_owner(sweep)
        assert owner is not None and owner["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"pid {os.getpid()}"):
            with sweep_lock(sweep):
                pass
    assert lock_owner(sweep) is None
    with sweep_lock(sweep):
        pass


HOLD = """
import sys, time
from pathlib import Path
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.lock import sweep_lock
with sweep_lock(SweepFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"pid {holder.pid}"):
        with sweep_lock(sweep):
            pass
    holder.kill()
    holder.communicate()
    assert lock_owner(sweep) is None
    with sweep_lock(sweep):
        assert (lock_owner(sweep) or {})["pid"] == os.getpid()


def test_without_file_locks_the_owner_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    sweep = SweepFolder(tmp_path)
    alive = {**this_process(), "pid": os.getppid()}
    import psutil

    alive["start"] = psutil.Process(os.getppid()).create_time()
    write_json(tmp_path / "lock", alive)
    with pytest.raises(UserError, match=f"pid {os.getppid()}"):
        with sweep_lock(sweep):
            pass
    write_json(tmp_path / "lock", {**alive, "start": 1.0})
    with sweep_lock(sweep):
        assert lock_owner(sweep) is not None


def test_a_recycled_pid_is_another_process() -> None:
    me = this_process()
    assert is_alive(me)
    assert not is_alive({**me, "start": me["start"] - 60})
    assert not is_alive({**me, "host": "elsewhere"})
    assert not is_alive({"host": me["host"]}) and not is_alive(None)


# ------------------------------------------------------------------- the breaker


def test_failures_alike_hold_a_stage() -> None:
    breaker = Breaker(limit=3)
    for i in range(3):
        assert breaker.holds("train") == ""
        breaker.failed("train", f"p{i}", f"OSError: no file step-{i}.pt at 0x7f{i}a")
    assert "failed alike: OSError: no file step-#" in breaker.holds("train")
    assert breaker.holds("evaluate") == ""


def test_one_point_that_fails_often_holds_nothing() -> None:
    breaker = Breaker(limit=2)
    for _ in range(5):
        breaker.failed("train", "p0", "ValueError: x")
    breaker.failed("train", "p1", "ValueError: y")
    assert breaker.holds("train") == ""


def test_a_success_keeps_a_stage_going() -> None:
    breaker = Breaker(limit=1)
    breaker.succeeded("train")
    breaker.failed("train", "p0", "ValueError: x")
    assert breaker.holds("train") == ""


def test_a_signature_leaves_out_what_differs() -> None:
    assert signature("loss 0.31 at step 12 (0xdeadbeef)") == "loss # at step # (#)"
