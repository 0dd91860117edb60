"""MLflow's own page on a store, on this machine's loopback address only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from sparrow_lab.errors import UserError
from sparrow_lab.tracking.connection import ENVIRONMENT
from sparrow_lab.tracking.store import Store

HOST = "127.0.0.1"
LEAN = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""No background jobs: they serve other uses of MLflow, and cost half a gigabyte."""
START_S = 180.0
"""MLflow's server takes 5 to 20 s to start, more on a busy machine."""
STOP_S = 10.0


class Server:
    """`with Server(store, port) as server:` runs `mlflow server` over the block.

    It and all its workers are one process group, which is ended with the block. Raises
    UserError when the port is taken, or when the server ends before it answers.
    """

    def __init__(self, store: Store, port: int) -> None:
        self.store = store
        self.port = port
        self.url = f"http://{HOST}:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path(tempfile.gettempdir()) / f"sparrow-lab-mlflow-{os.getpid()}-{port}.log"

    def __enter__(self) -> Server:
        check_port(self.port)
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server and its workers: asked first, then by force. Safe to call again."""
        process, self._process = self._process, None
        if process is not None:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                    process.wait(STOP_S)
                except ProcessLookupError:
                    break
                except subprocess.TimeoutExpired:
                    continue
            process.wait()
        self._log.unlink(missing_ok=True)

    def said(self) -> str:
        """The last lines that the server printed."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return " | ".join(line.strip() for line in lines[-5:] if line.strip())

    def _start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", HOST, "--port", str(self.port)]
        command += ["--backend-store-uri", self.store.uri]
        where = tempfile.gettempdir()
        if self.store.artifacts is not None:
            where = str(self.store.artifacts.parent)
            command += ["--artifacts-destination", str(self.store.artifacts)]
        # The environment of the user's own settings must not decide where the server listens.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=where,
                env={**environment, **ENVIRONMENT, **LEAN},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while not answers(f"{self.url}/health"):
            if not self.alive:
                raise UserError(f"MLflow's server ended at once: {self.said()}", "ui")
            if time.monotonic() > until:
                raise UserError(f"MLflow's server does not answer: {self.said()}", "ui")
            time.sleep(0.3)


def check_port(port: int) -> None:
    """Raise UserError, with the next free port, unless `port` can be listened on."""
    if is_free(port):
        return
    other = next((p for p in range(port + 1, min(port + 100, 65536)) if is_free(p)), None)
    hint = f"; try --port {other}" if other else ""
    raise UserError(f"port {port} on {HOST} is taken by another program{hint}", "--port")


def is_free(port: int) -> bool:
    """Whether this process may listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return False
    return True


def answers(url: str) -> bool:
    """Whether a server answers 200 there; proxies are never asked for the own machine."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
