"""What MLflow holds of a sweep, and what it should hold."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking.importer import sync
from sparrow_lab.tracking.summary import SyncSummary

History = Callable[[Path, str], dict[tuple[str, int], list[tuple[float, int]]]]
TRAIN = "tra-0.86-0"


def clean(sweep: SweepFolder, **arguments: Any) -> SyncSummary:
    """An import without a warning."""
    summary = sync(sweep, **arguments)
    assert summary.ok, (summary.warning, summary.problems)
    return summary


def mlflow_runs(root: Path, experiment: str = "demo") -> dict[str, Any]:
    """The active runs by point id; the sweep's own under "sweep"."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{root}/mlflow.db")
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id])
    named = {run.data.tags.get("sparrow.point", "sweep"): run for run in runs}
    assert len(named) == len(runs), "a task has two runs"
    return named


def expected(sweep: SweepFolder, point: str = TRAIN) -> dict[tuple[str, int], tuple[float, int]]:
    """Finite values and their milliseconds as the run folder has them."""
    return {
        (name, step): (value, round(when * 1000))
        for step, when, _, metrics in read_events(sweep.point(point)).rows
        for name, value in metrics.items()
        if math.isfinite(value)
    }


def check_equal(root: Path, sweep: SweepFolder, history: History, point: str = TRAIN) -> None:
    """MLflow holds each finite value of the run folder once, and no other under its name."""
    held = history(root, point)
    wanted = expected(sweep, point)
    assert all(len(values) == 1 for values in held.values())
    assert {key: values[0] for key, values in held.items() if key in wanted} == wanted
    names = {name for name, _ in wanted}
    assert {key for key in held if key[0] in names} == set(wanted)


def dump(root: Path, table: str = "") -> list[str]:
    with sqlite3.connect(root / "mlflow.db") as connection:
        lines = [line for line in connection.iterdump() if line.startswith("INSERT")]
    connection.close()
    return [line for line in lines if f'"{table}"' in line or not table]
