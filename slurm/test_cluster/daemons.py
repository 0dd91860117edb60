"""Starting, finding and ending daemons: each in the foreground of a session of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .settings import Settings

SIGKILL_AFTER_S = 15.0


class ClusterError(RuntimeError):
    """Something did not start or answer; the text ends with the log's last lines."""


@dataclass(frozen=True)
class Daemon:
    """A program that runs until it is stopped. `host` is the name that it sees as the machine's."""

    name: str
    command: tuple[str, ...]
    host: str = "head"


def start(settings: Settings, daemon: Daemon, own_names: bool) -> bool:
    """Start a daemon unless it runs; True when it had to be started."""
    if pid_of(settings, daemon.name) is not None:
        return False
    command = named(daemon.host, settings, daemon.command) if own_names else daemon.command
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    with (settings.log / f"{daemon.name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            env={**env, "SLURM_CONF": str(settings.slurm_conf)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )
    began = _start_time(process.pid)
    (settings.run / f"{daemon.name}.pid").write_text(f"{process.pid} {began}\n")
    return True


def named(host: str, settings: Settings, command: Sequence[str]) -> tuple[str, ...]:
    """The command in namespaces where the machine is called `host` and that is loopback.

    Slurm binds to what the host's own name resolves to. The nodes' jobs too see the name
    of their node, as on a real cluster, and nothing of the machine outside is changed.
    """
    script = 'hostname "$1"; mount --bind "$2" /etc/hosts; shift 2; exec "$@"'
    hosts = str(settings.etc / "hosts")
    return ("unshare", "--uts", "--mount", "sh", "-ec", script, "sh", host, hosts, *command)


def can_name(settings: Settings) -> bool:
    """Whether this machine lets us have namespaces of our own."""
    if shutil.which("unshare") is None:
        return False
    test = subprocess.run(named("head", settings, ["true"]), capture_output=True)
    return test.returncode == 0


def pid_of(settings: Settings, name: str) -> int | None:
    """The pid of a running daemon; None when it has ended, or its pid now is another's."""
    try:
        pid, began = (settings.run / f"{name}.pid").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return int(pid) if _start_time(int(pid)) == began else None


def stop(settings: Settings, name: str) -> None:
    """End a daemon: SIGTERM, and SIGKILL when it does not leave."""
    pid = pid_of(settings, name)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        if not _within(SIGKILL_AFTER_S, lambda: pid_of(settings, name) is None):
            print(f"{name} ({pid}) did not stop: SIGKILL")
            os.kill(pid, signal.SIGKILL)
    (settings.run / f"{name}.pid").unlink(missing_ok=True)


def wait_for(
    settings: Settings, name: str, what: str, seconds: float, ready: Callable[[], bool]
) -> None:
    """Wait until `ready`. Raises ClusterError when it takes too long or the daemon has ended."""
    died = False

    def over() -> bool:
        nonlocal died
        died = pid_of(settings, name) is None
        return died or ready()

    if _within(seconds, over) and not died:
        return
    log = settings.log / f"{name}.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    raise ClusterError(f"{what}{' (it has ended)' if died else ''}\n--- {log}\n{tail}")


def answers(*command: str, env: dict[str, str] | None = None) -> bool:
    """Whether a command ends well within 10 seconds."""
    try:
        run = subprocess.run(command, capture_output=True, env=env, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 0


def _within(seconds: float, true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is none or it is a zombie.

    Without an init that reaps them, ended daemons stay zombies for seconds.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] == "Z" else fields[19]
