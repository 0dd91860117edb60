"""The pretended Slurm in a test's hand: where it is, what goes wrong, what happens to its jobs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from sparrow_lab.fake_slurm import faults, ids, life, processes
from sparrow_lab.fake_slurm.programs import PROGRAMS, install
from sparrow_lab.fake_slurm.store import Store

NO_ACCOUNTING = "Slurm accounting storage is disabled"
BUSY = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
FULL = (
    "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job "
    "violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


class FakeSlurm:
    """A pretended cluster in a folder of its own, which is made.

    Args:
        folder: where its state, its programs and its log lie.
        settings: of `store.DEFAULTS`: max_array, slots, kill_wait_s, minute_s, ...

    As a context manager it runs jobs inside the block and leaves no process after it;
    without that, jobs wait until `set_state` says otherwise. Linux only where jobs run.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = Path(folder).absolute()
        self.store = Store(self.folder)
        for key, value in settings.items():
            self.store.set(key, value)
        self.bin = install(self.folder)
        self._controller: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> str:
        """A value for PATH by which its programs are found before any others."""
        return os.pathsep.join([str(self.bin), os.environ.get("PATH", "")])

    # ------------------------------------------------------------------ running jobs

    def __enter__(self) -> FakeSlurm:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Run jobs from now on."""
        with (self.folder / "controller.log").open("ab") as log:
            self._controller = subprocess.Popen(
                [str(self.bin / "controller")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """End the controller and every process of every job. Raises RuntimeError if it failed."""
        if self._controller is None:
            return
        self._controller.terminate()
        code = self._controller.wait(30)
        self._controller = None
        processes.kill_everything(self.folder)
        if code not in (0, -signal.SIGTERM):  # the latter: it had hardly begun
            raise RuntimeError((self.folder / "controller.log").read_text())

    # ------------------------------------------------------------------ what goes wrong

    def fail(
        self, program: str, message: str, *, skip: int = 0, times: int | None = 1,
        done: bool = False, code: int = 1,
    ) -> None:  # fmt: skip
        """Let a program fail with a message, after `skip` more good calls, `times` times.

        `done`: it has done its work then, and only its answer is lost. `times` None: for ever.
        """
        self._plan(program, "fail", skip, times, message=message, done=done, code=code)

    def kill_caller(self, program: str, *, skip: int = 0, done: bool = True) -> None:
        """SIGKILL whoever calls the program, after (`done`) or before it does its work."""
        self._plan(program, "kill", skip, 1, done=done)

    def slow(
        self, program: str, seconds: float, *, skip: int = 0, times: int | None = None
    ) -> None:
        """Let a program take so much longer."""
        self._plan(program, "slow", skip, times, seconds=seconds)

    def no_accounting(self) -> None:
        """Let sacct fail for ever, as on a cluster without accounting."""
        self.fail("sacct", NO_ACCOUNTING, times=None)

    def show_as(self, **names: str) -> None:
        """Let squeue and scontrol show states under other names: `RUNNING="STRANGE"`."""
        self.store.set("shown_states", names)

    def mend(self) -> None:
        """Nothing goes wrong any more."""
        self.store.run("delete from faults")
        self.store.set("shown_states", {})

    # ------------------------------------------------------------------ what happens to jobs

    def tasks(self, job: str | int | None = None) -> list[dict[str, Any]]:
        """All tasks, or those that an id names, with their states; arrays by index."""
        if job is None:
            rows = self.store.rows("select * from tasks order by job, idx")
        else:
            rows, _ = ids.select(self.store, [str(job)])
        return [dict(row) for row in rows]

    def states(self) -> dict[str, str]:
        """The state of each task by its id, `1001_3` or `1001`."""
        return {ids.spelled(t["job"], t["idx"]): t["state"] for t in self.tasks()}

    def requeue(self, job: str) -> None:
        """As `scontrol requeue`."""
        self._each(job, lambda task: life.requeue(self.store, task))

    def preempt(self, job: str, grace_s: float = 0.0, evict: bool = False) -> None:
        """Preempt running tasks; `evict`: they do not go back into the queue."""
        self._each(job, lambda task: life.preempt(self.store, task, grace_s, evict))

    def limit(self, job: str, seconds: float) -> None:
        """Let the time of running tasks be over in so many seconds from now."""
        sql = "update tasks set limit_at = ?, warned = 0 where job = ? and idx = ?"
        at = time.time() + seconds
        self._each(job, lambda task: self.store.run(sql, at, task["job"], task["idx"]))

    def lose_node(self, job: str) -> None:
        """Let the nodes of tasks be lost: they start again while their old processes live on."""
        self._each(job, lambda task: life.lose(self.store, task))

    def kill(self, job: str) -> None:
        """SIGKILL every process of tasks, as the kernel does when memory is short."""
        self._each(job, lambda task: processes.send(self.folder, task, signal.SIGKILL))

    def set_state(self, job: str, state: str) -> None:
        """Put tasks into a state by hand; for a cluster that runs nothing."""
        sql = "update tasks set state = ? where job = ? and idx = ?"
        self._each(job, lambda task: self.store.run(sql, state, task["job"], task["idx"]))

    def forget(self, job: str) -> None:
        """Let the cluster know nothing of a job any more, as after it was purged."""
        self._each(job, lambda task: self.store.run("delete from tasks where job = ?", task["job"]))

    def calls(self, program: str) -> list[list[str]]:
        """The command lines with which a program was called so far."""
        rows = self.store.rows("select words from calls where program = ? order by time", program)
        return [json.loads(row["words"]) for row in rows]

    # ------------------------------------------------------------------

    def _plan(
        self, program: str, kind: faults.Kind, skip: int, times: int | None, **value: Any
    ) -> None:
        if program not in PROGRAMS or program == "srun":
            raise ValueError(f"there is no program '{program}' that could fail")
        faults.plan(self.store, program, kind, skip, times, **value)

    def _each(self, job: str, what: Callable[[sqlite3.Row], object]) -> None:
        with self.store.writing():
            tasks, unknown = ids.select(self.store, [job])
            if unknown:
                raise KeyError(job)
            for task in tasks:
                what(task)
