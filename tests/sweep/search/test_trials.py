"""Trials in the ledger: written, read back, told again, and whole after a torn line."""

from __future__ import annotations

from pathlib import Path

from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.search.trials import (
    Outcome,
    Trial,
    read_trials,
    spelled_values,
    write_proposed,
    write_told,
)

TRIALS = [
    Trial(0, {"train.lr": 1e-4, "sparsity.schedule": {"tau": 0.5}}, ("a1", "a2"), "a first draw"),
    Trial(1, {"train.lr": 1e-5, "sparsity.schedule": "dense"}, ("b1", "b2"), "a first draw"),
]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("opened", parallel=2)
    write_proposed(ledger, TRIALS)
    write_told(ledger, {1: Outcome("done", 0.25), 0: Outcome("failed", None, "no memory")})
    first, second = read_trials(ledger.read())
    assert first.values == TRIALS[0].values and first.points == ("a1", "a2")
    assert first.outcome == Outcome("failed", None, "no memory") and not first.open
    assert second.outcome == Outcome("done", 0.25)


def test_the_last_word_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    write_proposed(ledger, TRIALS)
    write_told(ledger, {0: Outcome("failed", None, "lost")})
    write_told(ledger, {0: Outcome("done", 1.0)})
    assert [t.outcome for t in read_trials(ledger.read())] == [Outcome("done", 1.0), None]


def test_a_trial_that_is_tried_again_is_open(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    write_proposed(ledger, TRIALS)
    write_told(ledger, {0: Outcome("failed", None, "lost"), 1: Outcome("done", 1.0)})
    write_told(ledger, {0: None})
    first, second = read_trials(ledger.read())
    assert first.open and second.outcome == Outcome("done", 1.0)


def test_a_torn_proposal_is_none(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    write_proposed(ledger, TRIALS)
    data = ledger.path.read_bytes()
    ledger.path.write_bytes(data[:-20])
    assert [t.number for t in read_trials(ledger.read())] == [0]
    write_proposed(ledger, TRIALS[1:])
    assert [t.number for t in read_trials(ledger.read())] == [0, 1]


def test_events_of_others_and_strange_ones_are_passed_over() -> None:
    events = [
        {"event": "told", "trial": 5, "kind": "done", "value": 1},
        {"event": "proposed", "trial": "x", "values": {}},
        {"event": "proposed", "trial": 0, "values": [1]},
        {"event": "submitted", "point": "a"},
    ]
    assert read_trials(events) == []


def test_values_in_words() -> None:
    assert spelled_values({"train.lr": 1e-4, "model.name": "tiny-s"}) == "lr=0.0001, name=tiny-s"
