"""submitit's local executor, with jobs that outlive the terminal and the launcher.

Plain submitit starts its controller in the launcher's process group: a Ctrl-C in the
terminal reaches it, and it kills the worker within a second, before that could save.
Here each job is a session of its own, and only the launcher decides when it ends.
This module imports submitit; it is imported when the first job starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from submitit.local.local import LocalExecutor, LocalJob

from sparrow_lab.sweep.environment import worker_environment

NEVER_MIN = 60 * 24 * 365
"""submitit's own time limit: out of the way. The launcher keeps the time itself, because
submitit takes every signal within ten minutes of its limit for a timeout."""


class DetachedExecutor(LocalExecutor):
    """Starts submitit's controller in a new session with a given environment."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        super().__init__(folder=folder, max_num_timeout=0)
        self._environment = dict(environment)

    def _submit_command(self, command: str) -> LocalJob[Any]:
        settings = {
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_NTASKS": "1",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_TIMEOUT_S": str(60 * NEVER_MIN),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "0",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_STDERR_TO_STDOUT": "1",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
        }
        with (self.folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env={**os.environ, **settings, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=[0])


def submit(folder: Path, threads: int, function: Callable[..., None], *args: Any) -> LocalJob[Any]:
    """Start `function(*args)` in a job whose files lie in `folder`, with so many threads."""
    folder.mkdir(parents=True, exist_ok=True)
    job = DetachedExecutor(folder, worker_environment(threads)).submit(function, *args)
    return cast("LocalJob[Any]", job)
