"""The state folder: one SQLite file that every program and the controller share."""

from __future__ import annotations

import json
import os
import pwd
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TABLES = """
create table if not exists submissions (
    job integer primary key, name text, user text, partition text, account text, qos text,
    script text, command text, workdir text, environment text, output text, error text,
    append integer, limit_s real, signal text, requeue integer, throttle integer,
    dependency text, cpus integer, gpus integer, ntasks integer, comment text,
    submitted real, size integer
);
create table if not exists tasks (
    job integer, idx integer, raw integer, state text, reason text default 'None',
    node text default '', pid integer, restarts integer default 0, started real, ended real,
    code integer default 0, signal integer default 0, begin real default 0,
    limit_at real, warned integer default 0, ending text default '', end_at real, kill_at real,
    preempted_at real, evicted integer default 0,
    held integer default 0, primary key (job, idx)
);
create index if not exists by_state on tasks (state);
create index if not exists by_raw on tasks (raw);
create table if not exists settings (key text primary key, value text);
create table if not exists faults (
    id integer primary key, program text, kind text, skip integer, times integer, value text
);
create table if not exists calls (program text, words text, time real);
"""

DEFAULTS: dict[str, Any] = {
    "next_id": 1001,
    "max_array": 1001,
    "slots": 4,
    "kill_wait_s": 2.0,
    "requeue_wait_s": 0.2,
    "minute_s": 60.0,
    "partitions": ["main", "low", "high"],
    "nodes": 2,
    "gpus": 2,
    "shown_states": {},
}
"""`slots`: jobs that run at once; `minute_s`: how long a minute of a time limit takes."""


class Store:
    """The jobs, settings and planned faults under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        new = not (self.folder / "slurm.db").exists()
        self.db = sqlite3.connect(self.folder / "slurm.db", isolation_level=None, timeout=60)
        self.db.row_factory = sqlite3.Row
        self.db.execute("pragma synchronous = off")
        if new:
            self.db.execute("pragma journal_mode = wal")
            self.db.executescript(TABLES)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One change that nobody else sees in part; nested ones are part of the outer."""
        if self.db.in_transaction:
            yield
            return
        self.db.execute("begin immediate")
        try:
            yield
        except BaseException:
            self.db.execute("rollback")
            raise
        self.db.execute("commit")

    def rows(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """All rows of a query."""
        return self.db.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        """Execute a change; the number of rows that it changed."""
        return self.db.execute(sql, values).rowcount

    def get(self, key: str) -> Any:
        """A setting, or its default. Raises KeyError for an unknown one."""
        found = self.rows("select value from settings where key = ?", key)
        return json.loads(found[0]["value"]) if found else DEFAULTS[key]

    def set(self, key: str, value: Any) -> None:
        """Change a setting. Raises KeyError for an unknown one."""
        if key not in DEFAULTS:
            raise KeyError(key)
        self.run("insert or replace into settings values (?, ?)", key, json.dumps(value))

    def new_ids(self, count: int) -> int:
        """Take so many job ids; the first of them."""
        first = int(self.get("next_id"))
        self.set("next_id", first + count)
        return first

    def close(self) -> None:
        self.db.close()


def user() -> str:
    """The caller's name, or number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
