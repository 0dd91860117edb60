"""The worker process of an element: started, asked to stop, ended with all that it started."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparrow_lab.runs.process import end_with_parent, shielded
from sparrow_lab.sweep.environment import worker_environment
from sparrow_lab.sweep.processes import kill_all

if TYPE_CHECKING:
    import psutil

PRESS_EVERY_S = 1.0
PR_SET_CHILD_SUBREAPER = 36


class Child:
    """`python -m sparrow_lab.stages` for some points. `returncode` is None while it lives."""

    def __init__(self, task: Mapping[str, Any], threads: int, environment: Mapping[str, str]):
        with shielded():  # it listens once it has begun; until then signals wait
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "sparrow_lab.stages", json.dumps(task)],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **worker_environment(threads), **environment},
                preexec_fn=end_with_parent(signal.SIGKILL),
            )
        self._pressed = 0.0

    @property
    def returncode(self) -> int | None:
        """0, 1, or the negative number of the signal that killed it."""
        return self._process.poll()

    def press(self) -> None:
        """Ask it to save and leave; again and again until it has gone."""
        if time.monotonic() - self._pressed >= PRESS_EVERY_S and self.returncode is None:
            self._pressed = time.monotonic()
            self._process.send_signal(signal.SIGUSR2)

    def end(self) -> None:
        """Kill it and everything that it started; to be called after it has left, too."""
        kill_all(descendants())
        self._process.wait()


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def descendants() -> list[psutil.Process]:
    """All processes below this one."""
    import psutil

    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []
