"""Imports when something is wrong: MLflow away, deleted, locked, moved; a task damaged."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking.connection import StoreError
from sparrow_lab.tracking.importer import Importer, sync
from sparrow_lab.tracking.lease import Lease
from sparrow_lab.tracking.writer import Writer
from tests.tracking import simulate
from tests.tracking.held import TRAIN, History, check_equal, clean, mlflow_runs
from tests.tracking.simulate import claim, make_plan, make_sweep, write_steps

pytestmark = pytest.mark.usefixtures("few_pictures")


def test_a_deleted_database_is_filled_again(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_all(sweep, steps=5)
    clean(sweep)
    before = {point: run.data.metrics for point, run in mlflow_runs(runs).items()}
    (runs / "mlflow.db").unlink()
    summary = clean(sweep)
    assert summary.created == 4
    with sqlite3.connect(runs / "mlflow.db") as connection:
        (count,) = connection.execute("select count(*) from runs").fetchone()
    connection.close()
    assert count == 5
    again = Importer(sweep)
    assert not again.run().changed
    assert before


def test_what_a_user_deleted_comes_back(runs: Path, sweep: SweepFolder) -> None:
    from mlflow.tracking import MlflowClient

    simulate.run_all(sweep, steps=3)
    clean(sweep)
    client = MlflowClient(tracking_uri=f"sqlite:///{runs}/mlflow.db")
    run = mlflow_runs(runs)[TRAIN]
    client.delete_run(run.info.run_id)
    assert clean(sweep).created == 1
    client.delete_experiment(run.info.experiment_id)
    clean(sweep)
    assert set(mlflow_runs(runs)) == {"sweep", *(p.id for p in sweep.read_plan().points)}


def test_an_import_that_died_half_way_is_made_good(
    runs: Path, sweep: SweepFolder, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = claim(sweep.point(TRAIN))
    write_steps(attempt, range(5))
    clean(sweep)
    write_steps(attempt, range(5, 10))
    log = Writer.log

    def half(self: Writer, run: Any, cells: Any) -> None:
        log(self, run, cells[: len(cells) // 2])
        raise StoreError("the database is locked by another process")

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "log", half)
        summary = sync(sweep)
    assert summary.warning is not None and "locked" in summary.warning
    clean(sweep)
    check_equal(runs, sweep, history)


def test_one_damaged_task_does_not_hold_the_others(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_all(sweep, steps=3)
    attempt = sweep.point(TRAIN).attempts()[-1]
    (attempt.path / "histograms.parquet").write_bytes(b"PAR1 no parquet")
    summary = sync(sweep)
    (problem,) = summary.problems
    assert str(sweep.point(TRAIN).path) in problem
    assert not summary.ok
    assert mlflow_runs(runs)["eva-0.86-0"].info.status == "FINISHED"


def test_a_torn_line_is_left_out(runs: Path, sweep: SweepFolder, history: History) -> None:
    attempt = claim(sweep.point(TRAIN))
    write_steps(attempt, range(4))
    with attempt.events_path.open("a") as stream:
        stream.write('{"step": 4, "time": 1.0, "att')
    clean(sweep)
    assert {step for _, step in history(runs, TRAIN)} == {0, 1, 2, 3}


def test_tasks_that_have_not_begun_have_no_run(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_calibrate(sweep.point("cal0"))
    summary = clean(sweep)
    assert (summary.waiting, summary.ended) == (3, False)
    found = mlflow_runs(runs)
    assert set(found) == {"sweep", "cal0"}
    assert found["sweep"].info.status == "RUNNING"


def test_an_extended_sweep_gets_new_names_and_keeps_its_runs(runs: Path) -> None:
    sweep = make_sweep(runs, make_plan("demo", [0.86], steps=5))
    simulate.run_all(sweep, steps=5)
    clean(sweep)
    before = mlflow_runs(runs)
    sweep.write_plan(make_plan("demo", [0.86, 0.9], steps=5, seeds=2))
    summary = clean(sweep)
    after = mlflow_runs(runs)
    assert (summary.rebuilt, summary.created, summary.values) == (0, 0, 0)
    assert after[TRAIN].info.run_id == before[TRAIN].info.run_id
    assert after[TRAIN].info.run_name == "train tau=0.86 seed=0 tiny-s page=8"


def test_another_importer_at_work_is_a_warning(runs: Path, sweep: SweepFolder) -> None:
    with Lease(runs / "mlflow.db.lock"):
        summary = sync(sweep, wait_s=0.1)
    assert summary.warning is not None and "another import" in summary.warning


def test_a_server_that_is_down_is_a_warning_within_seconds(sweep: SweepFolder) -> None:
    simulate.run_calibrate(sweep.point("cal0"))
    began = time.monotonic()
    summary = sync(sweep, uri="http://127.0.0.1:9")
    assert summary.warning is not None and "does not answer" in summary.warning
    assert time.monotonic() - began < 60
    assert not summary.changed


@pytest.mark.slow
def test_a_locked_database_is_a_warning(runs: Path, sweep: SweepFolder) -> None:
    simulate.run_calibrate(sweep.point("cal0"))
    clean(sweep)
    simulate.run_schedule(sweep.point("sch-0.86"), 0.86)
    connection = sqlite3.connect(runs / "mlflow.db", isolation_level=None)
    connection.execute("begin exclusive")
    summary = sync(sweep)
    connection.execute("rollback")
    connection.close()
    assert summary.warning is not None and "locked" in summary.warning
    assert clean(sweep).created == 1


def test_a_moved_runs_folder_is_told_what_to_do(
    tmp_path: Path, runs: Path, sweep: SweepFolder
) -> None:
    simulate.run_calibrate(sweep.point("cal0"))
    clean(sweep)
    moved = tmp_path / "moved"
    shutil.move(runs, moved)
    summary = sync(SweepFolder(moved / "demo"))
    assert summary.warning is not None
    assert "delete it and sync again" in summary.warning
    (moved / "mlflow.db").unlink()
    clean(SweepFolder(moved / "demo"))


def test_two_sweeps_of_one_name_do_not_mix_in_one_store(
    tmp_path: Path, empty_database: Path
) -> None:
    shutil.copy(empty_database, tmp_path / "shared.db")
    uri = f"sqlite:///{tmp_path}/shared.db"
    for place in ("a", "b"):
        sweep = make_sweep(tmp_path / place, make_plan("demo", [0.86]))
        simulate.run_calibrate(sweep.point("cal0"))
        summary = sync(sweep, uri=uri)
    assert summary.warning is not None
    assert "tracking.experiment" in summary.warning


def test_tracking_settings_of_the_file_hold(tmp_path: Path, empty_database: Path) -> None:
    shutil.copy(empty_database, tmp_path / "other.db")
    text = f"tracking:\n  uri: sqlite:///{tmp_path}/other.db\n  experiment: shared name\n"
    sweep = make_sweep(tmp_path / "runs", make_plan("demo", [0.86]), text)
    simulate.run_calibrate(sweep.point("cal0"))
    assert clean(sweep).experiment == "shared name"
    with sqlite3.connect(tmp_path / "other.db") as connection:
        names = [name for (name,) in connection.execute("select name from experiments")]
    connection.close()
    assert "shared name" in names
    assert not (tmp_path / "runs" / "mlflow.db").exists()
