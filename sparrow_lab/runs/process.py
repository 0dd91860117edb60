"""Which process owns something, and whether it still lives."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

START_TOLERANCE_S = 2.0
"""Start times are derived from the clock, which may be set between two readings."""

PR_SET_PDEATHSIG = 1

STOP_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
"""What schedulers, launchers and people send to end a job early."""


def this_process() -> dict[str, Any]:
    """{"host", "pid", "start", "time"} of the caller, for claims and locks.

    `start` is when the process started: with it, a pid that was given to another
    process later is not taken for the old one.
    """
    import psutil

    pid = os.getpid()
    start = psutil.Process(pid).create_time()
    return {"host": socket.gethostname(), "pid": pid, "start": start, "time": time.time()}


def on_this_host(owner: Mapping[str, Any]) -> bool:
    """Whether the owner's process can be looked up from here."""
    return owner.get("host") == socket.gethostname()


def is_alive(owner: Mapping[str, Any] | None) -> bool:
    """Whether that very process still runs on this host; a zombie does not.

    False for an owner of another host and for a record without pid or start.
    """
    import psutil

    if not owner or not on_this_host(owner):
        return False
    try:
        process = psutil.Process(int(owner["pid"]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return abs(process.create_time() - float(owner["start"])) <= START_TOLERANCE_S
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return False
    except psutil.AccessDenied:
        return True


def end_with_parent(number: int) -> Callable[[], None] | None:
    """What a child calls before it starts so that the kernel signals it when its parent dies,
    even by SIGKILL; None where there is no such thing (not Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(PR_SET_PDEATHSIG, int(number)) and None


@contextmanager
def shielded() -> Iterator[None]:
    """Keep the stop signals from what is started inside the block.

    A scheduler signals every process of a job. A helper that dies of it before its parent has
    saved would change a result, or leave a request unsent. The signals are blocked, which
    children inherit; the parent gets its own when the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
