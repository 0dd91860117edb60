"""Keeps MLflow up to date while a sweep runs, in a process of its own.

MLflow takes seconds to import and may be locked or absent; neither may slow a sweep
or end it. Whatever goes wrong here is one warning: `sparrow-lab sync` catches up.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import end_with_parent

LAST_SYNC_S = 600.0
"""Longest wait for the import at the end."""


class Tracker:
    """`sparrow-lab sync --follow` beside the launcher, and one last `sync` at the end.

    Args:
        sweep: the sweep.
        uri: MLflow's tracking URI, or None for the default beside the runs.
        command: what to run instead of `sparrow-lab sync`; its arguments are added.
    """

    def __init__(
        self, sweep: SweepFolder, uri: str | None = None, command: Sequence[str] | None = None
    ) -> None:
        self.log = sweep.path / "sync.log"
        target = ["--uri", uri] if uri else []
        start = list(command or (sys.executable, "-m", "sparrow_lab.cli", "sync"))
        self._command = [*start, str(sweep.path.resolve()), *target]
        self._process: subprocess.Popen[bytes] | None = None
        self.started = False

    def start(self) -> None:
        """Begin to follow. A process that cannot be started is left at that."""
        self.started = True
        with contextlib.suppress(OSError):
            self._process = self._run([*self._command, "--follow"])

    def finish(self) -> str:
        """Stop following and import what is left; return a warning, empty when all went well."""
        self.stop()
        try:
            process = self._run(self._command)
        except OSError as error:
            return f"MLflow was not brought up to date: {error}"
        try:
            code = process.wait(LAST_SYNC_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"MLflow was not brought up to date within {LAST_SYNC_S:g} s; see {self.log}"
        except KeyboardInterrupt:
            process.terminate()
            return "MLflow was not brought up to date; 'sparrow-lab sync' does it"
        return "" if code == 0 else f"MLflow was not brought up to date: {self._last_line()}"

    def stop(self) -> None:
        """Stop following without a last import."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def _run(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the launcher's to handle
                preexec_fn=end_with_parent(signal.SIGTERM),
            )

    def _last_line(self) -> str:
        lines = _text(self.log).strip().splitlines()
        return lines[-1] if lines else f"see {self.log}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
