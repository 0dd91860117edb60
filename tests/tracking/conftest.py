"""A database with MLflow's tables, made once: making one takes seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking import pictures
from sparrow_lab.tracking.store import resolve
from tests.tracking.simulate import make_plan, make_sweep


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sparrow_lab.tracking.connection import connect

    root = tmp_path_factory.mktemp("mlflow")
    connect(resolve(root))
    return root / "mlflow.db"


@pytest.fixture
def runs(tmp_path: Path, empty_database: Path) -> Path:
    """A runs folder whose MLflow database exists and is empty."""
    root = tmp_path / "runs"
    root.mkdir()
    shutil.copy(empty_database, root / "mlflow.db")
    return root


@pytest.fixture
def history() -> Callable[[Path, str], dict[tuple[str, int], list[tuple[float, int]]]]:
    """{(metric, step): [(value, milliseconds), ...]} of the run of a point, straight from SQL."""
    import sqlite3

    def read(root: Path, point: str) -> dict[tuple[str, int], list[tuple[float, int]]]:
        with sqlite3.connect(root / "mlflow.db") as connection:
            rows = connection.execute(
                "select m.key, m.step, m.value, m.timestamp, m.is_nan from metrics m "
                "join tags t on t.run_uuid = m.run_uuid join runs r on r.run_uuid = m.run_uuid "
                "where t.key = 'sparrow.point' and t.value = ? and r.lifecycle_stage = 'active'",
                (point,),
            ).fetchall()
        connection.close()
        found: dict[tuple[str, int], list[tuple[float, int]]] = {}
        for key, step, value, when, is_nan in rows:
            found.setdefault((key, step), []).append((float("nan") if is_nan else value, when))
        return found

    return read


@pytest.fixture
def few_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is most of an import's time, and the subject of one test only."""
    monkeypatch.setattr(pictures, "PICTURES", 1)


@pytest.fixture
def sweep(runs: Path, few_pictures: None) -> SweepFolder:
    return make_sweep(runs, make_plan("demo", [0.86], steps=20))
