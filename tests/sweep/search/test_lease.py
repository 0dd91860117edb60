"""The lease: one holder at a time, taken over when it ran out, whatever the clocks say."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.sweep.search.lease import Lease


def elsewhere(folder: Path, number: int = 1, **fields: object) -> Path:
    """A lease of a holder on another host, written now."""
    path = folder / f"{number}.json"
    holder = {"host": "n7", "pid": 1, "start": 0.0, "job": "120_0"}
    write_json(path, {"schema": 1, "holder": holder, "seconds": 60.0, **fields})
    return path


def age(path: Path, seconds: float) -> None:
    when = time.time() - seconds
    os.utime(path, (when, when))


def test_only_one_holds_it(tmp_path: Path) -> None:
    first, second = Lease(tmp_path), Lease(tmp_path)
    assert first.acquire(job="1")
    assert not second.acquire(job="2")
    holder = second.holder()
    assert holder is not None and (holder["job"], holder["pid"]) == ("1", os.getpid())
    first.release()
    assert second.holder() is None and second.acquire(job="2")
    assert not first.held() and second.held()


def test_a_dead_holder_of_this_host_is_followed_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path\n"
        "from sparrow_lab.sweep.search.lease import Lease\n"
        "assert Lease(Path(sys.argv[1])).acquire(); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert Lease(tmp_path).acquire()


def test_a_holder_elsewhere_keeps_it_until_it_runs_out(tmp_path: Path) -> None:
    path = elsewhere(tmp_path)
    assert not Lease(tmp_path).acquire()
    age(path, 59)
    assert not Lease(tmp_path).acquire()
    age(path, 70)
    assert Lease(tmp_path).acquire()


def test_looking_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = elsewhere(tmp_path)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(Path, "write_bytes", lambda *_: pytest.fail("wrote"))
    assert Lease(tmp_path).holder() is not None
    age(path, 70)
    assert Lease(tmp_path).holder() is None
    assert Lease(tmp_path / "none").holder() is None
    assert sorted(tmp_path.iterdir()) == before


def test_the_holders_clock_does_not_matter(tmp_path: Path) -> None:
    """What the file says of the time is for people."""
    path = elsewhere(tmp_path, expires=time.time() + 10_000, renewed=time.time() + 9_000)
    age(path, 70)
    assert Lease(tmp_path).acquire()


def test_a_holder_that_is_known_to_be_gone_is_followed(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    assert not Lease(tmp_path).acquire(lambda holder: False)
    assert Lease(tmp_path).acquire(lambda holder: holder["job"] == "120_0")


def test_a_job_that_was_requeued_takes_its_own_lease(tmp_path: Path) -> None:
    elsewhere(tmp_path)
    assert Lease(tmp_path).acquire(job="120_0")


def test_a_holder_that_was_overtaken_notices(tmp_path: Path) -> None:
    mine = Lease(tmp_path)
    assert mine.acquire() and mine.renew()
    elsewhere(tmp_path, mine.number + 1)
    assert not mine.held() and not mine.renew()
    mine.release()
    content = read_json(tmp_path / "2.json")
    assert content["holder"]["host"] == "n7" and "released" not in content


def test_a_torn_lease_counts_until_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "1.json"
    path.write_text('{"holder"')
    assert not Lease(tmp_path).acquire()
    age(path, 500)
    assert Lease(tmp_path).acquire()


@pytest.mark.slow
def test_of_many_that_start_together_one_gets_it(tmp_path: Path) -> None:
    path = elsewhere(tmp_path)
    age(path, 500)
    code = (
        "import sys, time; from pathlib import Path\n"
        "from sparrow_lab.sweep.search.lease import Lease\n"
        "time.sleep(max(0, float(sys.argv[2]) - time.time()))\n"
        "lease = Lease(Path(sys.argv[1])); print(lease.acquire(), flush=True); time.sleep(4)"
    )
    start = str(time.time() + 4)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), start], stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    said = [racer.communicate()[0].strip() for racer in racers]
    assert sorted(said) == ["False"] * 7 + ["True"]
