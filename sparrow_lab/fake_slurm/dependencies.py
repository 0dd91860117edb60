"""Whether a job may start, as far as it waits for others."""

from __future__ import annotations

import re
import sqlite3
from typing import Literal

from sparrow_lab.fake_slurm import ids
from sparrow_lab.fake_slurm.store import Store

Verdict = Literal["yes", "not yet", "never"]


def verdict(store: Store, job: sqlite3.Row, index: int) -> Verdict:
    """Whether what a task waits for has come; with `?` one part of it is enough."""
    text = str(job["dependency"])
    if not text:
        return "yes"
    parts = [_part(store, job, index, part) for part in re.split(r"[,?]", text) if part]
    if "?" in text:
        return "yes" if "yes" in parts else ("never" if set(parts) == {"never"} else "not yet")
    return "never" if "never" in parts else ("not yet" if "not yet" in parts else "yes")


def _part(store: Store, job: sqlite3.Row, index: int, part: str) -> Verdict:
    kind, *words = part.split(":")
    if kind == "singleton":
        sql = "select 1 from tasks join submissions using (job) where name = ? and user = ?"
        active = " and job < ? and state in ('PENDING', 'RUNNING', 'COMPLETING') limit 1"
        return (
            "not yet" if store.rows(sql + active, job["name"], job["user"], job["job"]) else "yes"
        )
    verdicts: set[Verdict] = set()
    for word in words:
        # an id that Slurm has never heard of, or no longer, holds nothing back
        tasks, _ = ids.select(store, [word.partition("+")[0]])
        if kind == "aftercorr" and any(t["idx"] != ids.WHOLE for t in tasks):
            tasks = [t for t in tasks if t["idx"] == index]
        verdicts.add(_of_tasks(kind, [str(t["state"]) for t in tasks]))
    if "never" in verdicts:
        return "never"
    return "not yet" if "not yet" in verdicts else "yes"


def _of_tasks(kind: str, states: list[str]) -> Verdict:
    active = [s for s in states if s in ids.ACTIVE]
    if kind == "after":
        return "not yet" if "PENDING" in states else "yes"
    failed = any(s not in ids.ACTIVE and s != "COMPLETED" for s in states)
    if kind in ("afterok", "aftercorr") and failed:
        return "never"
    if active:
        return "not yet"
    if kind == "afternotok" and not failed and states:
        return "never"
    return "yes"
