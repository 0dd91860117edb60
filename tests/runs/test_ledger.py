"""The ledger survives torn lines and several writers; notes sum it up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import read_notes


def test_news_come_once(tmp_path: Path) -> None:
    ledger, other = Ledger(tmp_path / "ledger.jsonl"), Ledger(tmp_path / "ledger.jsonl")
    assert ledger.read() == [] and list(ledger.news()) == []
    other.append("planned", point="a")
    assert [e["event"] for e in ledger.news()] == ["planned"]
    other.append_all([{"event": "submitted", "point": "a"}, {"event": "submitted", "point": "b"}])
    assert [e["point"] for e in ledger.news()] == ["a", "b"]
    assert list(ledger.news()) == []
    assert len(ledger.read()) == 3


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_torn_line_spoils_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.append("planned", point="a")
    ledger.append("planned", point="b")
    path.write_bytes(path.read_bytes()[:-cut])
    ledger.append("planned", point="c")
    found = [e["point"] for e in ledger.read()]
    assert found == (["a", "b", "c"] if cut == 1 else ["a", "c"])


def test_an_unfinished_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    path.write_bytes(b'{"event": "pla')
    assert list(ledger.news()) == []
    with path.open("ab") as stream:
        stream.write(b'nned"}\n')
    assert list(ledger.news()) == [{"event": "planned"}]


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: Ledger(path).append("started", point=str(i)), range(100)))
    assert sorted(int(e["point"]) for e in Ledger(path).read()) == list(range(100))


def test_notes_sum_the_ledger_up() -> None:
    notes = read_notes(
        [
            {"event": "opened", "retries": 2},
            {"event": "submitted", "point": "a", "token": "t1"},
            {"event": "held", "point": "b", "reason": "alike"},
            {"event": "cancelled", "point": "a"},
            {"event": "cancelled", "point": "c"},
            {"event": "retry", "point": "a", "after": 3},
            {"event": "unknown to this version", "point": "a"},
        ]
    )
    assert notes.opened["retries"] == 2
    assert not notes.of("a").cancelled and notes.of("a").floor == 3
    assert notes.of("a").tokens == ["t1"]
    assert notes.of("b").held == "alike" and notes.of("c").cancelled
    notes.add({"event": "opened"})
    assert notes.of("b").held == "" and notes.of("c").cancelled
