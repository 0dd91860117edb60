"""Finding and signalling the processes of a job by its token, which is on their command lines."""

from __future__ import annotations

import contextlib
import os
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def find(tokens: set[str]) -> dict[str, list[psutil.Process]]:
    """Live processes of the jobs of these tokens, by token; those of none are left out.

    A job's folder is named by its token and is an argument of submitit's processes, the
    controller and the worker. Zombies and processes that may not be looked at do not count.
    """
    import psutil

    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline", "status"]):
        if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        command = process.info["cmdline"] or ()
        if not any(argument.startswith("submitit.") for argument in command):
            continue
        for token in tokens.intersection(PurePath(argument).name for argument in command):
            found.setdefault(token, []).append(process)
    return found


def left_behind(token: str) -> list[psutil.Process]:
    """Live processes that a worker of this job started, whether or not it still lives.

    They inherit the variable in which submitit is told the worker's command, and in it the
    job's folder. A process that is detached from its parents is found too.
    """
    import psutil

    found = []
    for process in psutil.process_iter(["status"]):
        if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with contextlib.suppress(psutil.Error):
            if token in process.environ().get("SUBMITIT_LOCAL_COMMAND", ""):
                found.append(process)
    return found


def live_tokens(tokens: set[str]) -> set[str]:
    """Those of the tokens that have a live process on this host."""
    return set(find(tokens)) if tokens else set()


def kill_all(processes: list[psutil.Process]) -> None:
    """SIGKILL processes and everything that they started."""
    import psutil

    victims = {p.pid: p for p in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            victims.update({c.pid: c for c in process.children(recursive=True)})
    for victim in victims.values():
        with contextlib.suppress(psutil.Error):
            victim.kill()
