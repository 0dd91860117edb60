"""What is to go wrong: planned by a test, found by the program that it is meant for."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from sparrow_lab.fake_slurm.answer import Answer
from sparrow_lab.fake_slurm.store import Store

Kind = Literal["fail", "kill", "slow"]
"""`fail`: the program says an error; `kill`: whoever called it dies; `slow`: it takes long."""


@dataclass(frozen=True)
class Due:
    """The faults of one call of a program."""

    faults: list[dict[str, Any]] = field(default_factory=list)

    def before(self) -> Answer | None:
        """Be slow; then fail or kill, if that is to happen before anything is done."""
        for fault in self.faults:
            if fault["kind"] == "slow":
                time.sleep(fault["seconds"])
        return self._strike(done=False)

    def after(self) -> Answer | None:
        """Fail or kill, if that is to happen once the work is done but not told."""
        return self._strike(done=True)

    def _strike(self, done: bool) -> Answer | None:
        for fault in self.faults:
            if fault.get("done", False) != done:
                continue
            if fault["kind"] == "kill":
                os.kill(os.getppid(), signal.SIGKILL)
                return Answer(code=1)
            if fault["kind"] == "fail":
                return Answer(err=f"{fault['message']}\n", code=fault["code"])
        return None


def plan(
    store: Store, program: str, kind: Kind, skip: int, times: int | None, **value: Any
) -> None:
    """Let a fault happen at the calls of a program that come after `skip` more of them.

    `times`: so often; None for ever.
    """
    store.run(
        "insert into faults (program, kind, skip, times, value) values (?, ?, ?, ?, ?)",
        program, kind, skip, times, json.dumps(value),
    )  # fmt: skip


def of_call(store: Store, program: str, words: list[str]) -> Due:
    """Count a call of a program; the faults that are due at it."""
    found = []
    with store.writing():
        store.run("insert into calls values (?, ?, ?)", program, json.dumps(words), time.time())
        for row in store.rows("select * from faults where program = ? order by id", program):
            if row["skip"] > 0:
                store.run("update faults set skip = skip - 1 where id = ?", row["id"])
            elif row["times"] is None or row["times"] > 0:
                store.run("update faults set times = times - 1 where id = ?", row["id"])
                found.append({"kind": row["kind"], **json.loads(row["value"])})
    return Due(found)
