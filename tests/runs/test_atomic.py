"""Files are whole or absent, and created by one caller only."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from sparrow_lab.runs import atomic


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    atomic.write_json(path, {"a": [1, "é"]})
    atomic.write_json(path, {"a": 2})
    assert atomic.read_json(path) == {"a": 2}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    atomic.write_json(path, 1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_json(path, 2)
    assert atomic.read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("text", ["", "{", '{"marker": "do', "\0\0\0"])
def test_a_torn_file_reads_as_absent(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert atomic.read_json(path) is None


def test_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", float("nan"))
    assert list(tmp_path.iterdir()) == []


def test_create_says_who_was_first_and_keeps_that_content(tmp_path: Path) -> None:
    path = tmp_path / "claim.json"
    assert atomic.create_json(path, 1)
    assert not atomic.create_json(path, 2)
    assert atomic.read_json(path) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["claim.json"]


def test_create_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "claim.json"
    assert atomic.create_json(path, 1)
    assert not atomic.create_json(path, 2)
    assert atomic.read_json(path) == 1


def _race(path: str, barrier: object, won: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    if atomic.create_json(Path(path), {"pid": os.getpid()}):
        won.put(os.getpid())  # type: ignore[attr-defined]


def test_of_many_processes_one_creates(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, won = context.Barrier(8), context.Queue()
    path = str(tmp_path / "claim.json")
    racers = [context.Process(target=_race, args=(path, barrier, won)) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(30)
    winner = won.get(timeout=5)
    assert won.empty()
    assert atomic.read_json(Path(path)) == {"pid": winner}
