"""How a trial ended, read from the files of its point."""

from __future__ import annotations

from pathlib import Path

from sparrow_lab.config.schema import VerdictConfig
from sparrow_lab.runs.events import EventWriter, compact
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.search.outcome import verdict_outcome
from sparrow_lab.sweep.search.trials import Outcome, Trial
from sparrow_lab.sweep.states import PointState

POINT = PlannedPoint("abc", "train", label={"tau": 0.5})
TRIAL = Trial(0, {}, (POINT.id,))


def test_a_run_whose_events_are_damaged_fails_its_trial_and_nothing_else(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path)
    attempt = sweep.point(POINT.id).new_attempt({})
    with EventWriter(attempt) as events:
        for step, value in enumerate((0.5, 0.7, 0.9, 0.95)):
            events.write(step, {"evaluate/reward": value})
    compact(attempt)
    states = {POINT.id: PointState(POINT, "done", result={})}
    found = verdict_outcome(TRIAL, states, sweep, VerdictConfig())
    assert found is not None and (found.kind, found.value) == ("stable", 0.95)
    (attempt.path / "events.parquet").write_bytes(b"PAR1")
    found = verdict_outcome(TRIAL, states, sweep, VerdictConfig())
    assert found == Outcome("failed", None, found.reason if found else "")
    assert found.reason.startswith("train tau=0.5: attempts/1/events.parquet is damaged: ")
