"""What happens to a job from outside: cancelled, requeued, preempted, lost, out of time."""

from __future__ import annotations

import signal
import sqlite3
import time
from typing import Literal

from sparrow_lab.fake_slurm import processes
from sparrow_lab.fake_slurm.store import Store

Ending = Literal["cancel", "requeue", "preempt", "evict", "timeout", "node"]
"""Why a task is being ended; the controller writes what becomes of it when it has gone."""

FINAL = {
    "cancel": "CANCELLED", "preempt": "PREEMPTED", "evict": "PREEMPTED", "timeout": "TIMEOUT",
    "node": "NODE_FAIL",
}  # fmt: skip


def end(store: Store, task: sqlite3.Row, why: Ending) -> None:
    """SIGTERM to all of its processes, SIGKILL after the kill wait.

    A task that has no process (it waits, or nothing runs jobs here) is over at once.
    """
    if task["state"] == "PENDING" or (task["state"] == "RUNNING" and task["pid"] is None):
        over(store, task, why)
    elif task["state"] == "RUNNING":
        kill_at = time.time() + store.get("kill_wait_s")
        _update(store, task, "state = 'COMPLETING', ending = ?, kill_at = ?", why, kill_at)
        for number in (signal.SIGCONT, signal.SIGTERM):
            processes.send(store.folder, task, number)


def over(store: Store, task: sqlite3.Row, why: str, code: int = 0) -> None:
    """Write down that a task has ended, and whether it is to start again.

    `why` is an `Ending`, or "" for a task that ended by itself with an exit code (negative:
    killed by that signal).
    """
    now = time.time()
    again = why in ("requeue", "preempt", "node") and _may_requeue(store, task["job"])
    if again and task["state"] != "PENDING":
        _update(
            store, task,
            "state = 'PENDING', reason = 'BeginTime', node = '', pid = null, ending = '',"
            " warned = 0, restarts = restarts + 1, begin = ?, kill_at = null, end_at = null,"
            " limit_at = null, preempted_at = null",
            now + store.get("requeue_wait_s"),
        )  # fmt: skip
        return
    if why == "requeue":
        return  # it waits already, or may not
    state = FINAL.get(why) or ("COMPLETED" if code == 0 else "FAILED")
    _update(
        store, task, "state = ?, ended = ?, code = ?, signal = ?, pid = null, kill_at = null",
        state, now, max(code, 0), max(-code, 0),
    )  # fmt: skip


def requeue(store: Store, task: sqlite3.Row) -> bool:
    """`scontrol requeue`; False for a job that cannot be requeued."""
    if not _may_requeue(store, task["job"]):
        return False
    if task["state"] in ("RUNNING", "PENDING"):
        end(store, task, "requeue")
    elif task["state"] != "COMPLETING":
        _update(store, task, "ending = ''")
        over(store, task, "requeue")
    return True


def preempt(store: Store, task: sqlite3.Row, grace_s: float, evict: bool) -> None:
    """Take a running task its place: after a grace with its own signal, or at once.

    `evict`: it does not go back into the queue, as on clusters that cancel what they preempt.
    """
    now = time.time()
    values = (now, now + grace_s, evict)
    _update(store, task, "preempted_at = ?, end_at = ?, evicted = ?", *values)
    if grace_s > 0:
        warn(store, task)


def lose(store: Store, task: sqlite3.Row) -> None:
    """The node is gone for Slurm, while the process lives on there: it starts again elsewhere."""
    over(store, task, "node")


def warn(store: Store, task: sqlite3.Row) -> None:
    """Send the signal that the job asked for with --signal, or SIGTERM."""
    text = store.rows("select signal from submissions where job = ?", task["job"])[0]["signal"]
    name, _, _ = text.rpartition(":")[2].partition("@")
    number = signal_number(name) if name else signal.SIGTERM
    to_shell = text.startswith("B:")
    processes.send(store.folder, task, number, steps=not to_shell, shell=to_shell or not name)


def warning_time(text: str) -> float | None:
    """Seconds before the end at which the signal of `--signal` comes; None without one."""
    if not text:
        return None
    _, at, seconds = text.partition("@")
    return float(seconds) if at else 60.0


def signal_number(name: str) -> int:
    """`USR2`, `SIGUSR2` or `12`. Raises ValueError for no signal."""
    if name.isdecimal():
        return int(name)
    try:
        return int(signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"])
    except KeyError:
        raise ValueError(name) from None


def _may_requeue(store: Store, job: int) -> bool:
    return bool(store.rows("select requeue from submissions where job = ?", job)[0]["requeue"])


def _update(store: Store, task: sqlite3.Row, changes: str, *values: object) -> None:
    sql = f"update tasks set {changes} where job = ? and idx = ?"
    store.run(sql, *values, task["job"], task["idx"])
