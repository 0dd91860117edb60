"""Opening an MLflow store: quiet, without telemetry, and with one kind of error."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
"""Set unless the user has set them: a server that is down is said within seconds."""

_opened: dict[Path, tuple[int, int]] = {}
"""SQLite files of this process: inode when last opened, and how often the file was replaced."""


class StoreError(Exception):
    """MLflow cannot be written at present; one line that says why. Nothing is lost by it."""


@contextmanager
def store_errors(store: Store) -> Iterator[None]:
    """Turn whatever MLflow, its database or its server raise into StoreError."""
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, requests.RequestException, OSError) as error:
        raise StoreError(f"{store.uri}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """The part of a database's or server's message that says what is wrong, one line."""
    text = " ".join(str(error).split())
    if "database is locked" in text:
        return "the database is locked by another process"
    if "out-of-date database schema" in text or "Can't locate revision" in text:
        return (
            "the database is of another MLflow version: run 'mlflow db upgrade', "
            "or delete the file and sync again (everything is rebuilt from the run folders)"
        )
    if "Max retries exceeded" in text or "Connection refused" in text:
        return "the server does not answer"
    return f"{type(error).__name__}: {text[:300]}"


def prepare_environment() -> None:
    """Before mlflow is imported: no telemetry, short waits, no progress texts."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def connect(store: Store) -> MlflowClient:
    """A client of the store; a SQLite file that is missing is made, with its tables.

    Raises StoreError. Only one process may make a database: hold the lease.
    """
    prepare_environment()
    from mlflow.tracking import MlflowClient

    with store_errors(store):
        if store.database is not None:
            store.database.parent.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=_fresh_uri(store))
        client.search_experiments(max_results=1)
        if store.database is not None:
            turn = _opened.get(store.database, (0, 0))[1]
            _opened[store.database] = (store.database.stat().st_ino, turn)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # MLflow's migrations have raised it
    return client


def was_replaced(store: Store) -> bool:
    """Whether the SQLite file that this process had open was deleted or exchanged."""
    if store.database is None or store.database not in _opened:
        return False
    try:
        return store.database.stat().st_ino != _opened[store.database][0]
    except FileNotFoundError:
        return True


def _fresh_uri(store: Store) -> str:
    """The URI, spelled anew once the file was replaced.

    MLflow keeps one engine for each spelling of a URI; the old one would go on writing
    into the deleted file.
    """
    if store.database is None:
        return store.uri
    inode, turn = _opened.get(store.database, (0, 0))
    if was_replaced(store):
        turn += 1
        _opened[store.database] = (inode, turn)
    return f"sqlite:///{store.database.parent}{'/.' * turn}/{store.database.name}"
