"""Following a sweep: catching up after an absence of MLflow, and knowing when it is over."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking import importer, pictures
from sparrow_lab.tracking.connection import StoreError
from sparrow_lab.tracking.follow import follow_sweep
from sparrow_lab.tracking.summary import SyncSummary
from sparrow_lab.tracking.writer import Writer
from tests.tracking import simulate
from tests.tracking.simulate import claim, make_plan, make_sweep, write_steps

TRAIN = "tra-0.86-0"


@pytest.fixture
def sweep(runs: Path, monkeypatch: pytest.MonkeyPatch) -> SweepFolder:
    monkeypatch.setattr(pictures, "PICTURES", 1)
    return make_sweep(runs, make_plan("demo", [0.86], steps=20))


def play(sweep: SweepFolder) -> None:
    """A worker that takes its time."""
    simulate.run_calibrate(sweep.point("cal0"))
    simulate.run_schedule(sweep.point("sch-0.86"), 0.86)
    attempt = claim(sweep.point(TRAIN))
    for start in range(0, 20, 5):
        write_steps(attempt, range(start, start + 5))
        time.sleep(0.3)
    simulate.finish_train(sweep.point(TRAIN), attempt)
    simulate.run_evaluate(sweep.point("eva-0.86-0"))


def test_it_ends_with_the_sweep_and_has_all(sweep: SweepFolder) -> None:
    worker = threading.Thread(target=play, args=(sweep,))
    worker.start()
    total = follow_sweep(sweep, poll_s=0.2, settle_s=0.5)
    worker.join()
    assert total.ok and total.ended
    assert (total.created, total.rebuilt, total.waiting) == (4, 0, 0)
    again = importer.sync(sweep)
    assert not again.changed


def test_it_goes_on_while_mlflow_is_away_and_catches_up(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"passes": 3}
    log = Writer.log

    def failing(self: Writer, run: object, cells: object) -> None:
        if away["passes"] > 0:
            away["passes"] -= 1
            raise StoreError("the database is locked by another process")
        log(self, run, cells)  # type: ignore[arg-type]

    monkeypatch.setattr(Writer, "log", failing)
    play(sweep)
    seen: list[SyncSummary] = []
    total = follow_sweep(sweep, poll_s=0.05, settle_s=0.5, report=seen.append)
    assert [one.warning is not None for one in seen[:4]] == [True, True, True, False]
    assert total.ok
    assert not importer.sync(sweep).changed


def test_it_gives_up_on_a_store_that_stays_away(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate.run_all(sweep, steps=2)

    def failing(self: Writer, run: object, cells: object) -> None:
        raise StoreError("the server does not answer")

    monkeypatch.setattr(Writer, "log", failing)
    total = follow_sweep(sweep, poll_s=0.05, settle_s=0.1, give_up_s=0.5)
    assert total.warning is not None and not total.ok


def test_asked_to_stop_it_leaves_whole_tasks(sweep: SweepFolder) -> None:
    simulate.run_all(sweep, steps=3)
    stop = threading.Event()
    log = Writer.log

    def stopping(self: Writer, run: object, cells: object) -> None:
        stop.set()
        log(self, run, cells)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "log", stopping)
        total = follow_sweep(sweep, poll_s=30, stop=stop)
    assert total.created == 1
    assert total.warning is not None and "asked to stop" in total.warning
    rest = importer.sync(sweep)
    assert (rest.created, rest.rebuilt, rest.unchanged) == (3, 0, 1)


def test_it_does_not_end_while_a_launcher_lives_or_within_the_pause(sweep: SweepFolder) -> None:
    claim(sweep.point("cal0")).write_failure("error", "died")
    busy = iter([True, True])
    passes: list[SyncSummary] = []
    began = time.monotonic()
    total = follow_sweep(
        sweep,
        poll_s=0.1,
        settle_s=0.6,
        busy=lambda: next(busy, False),
        report=passes.append,
    )
    assert total.ended
    assert len(passes) >= 4
    assert time.monotonic() - began > 0.6


def test_a_database_deleted_meanwhile_is_filled_again(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_all(sweep, steps=3)
    one = importer.Importer(sweep)
    assert one.run().created == 4
    (runs / "mlflow.db").unlink()
    again = one.run()
    assert (again.warning, again.created) == (None, 4)
    assert not one.run().changed
