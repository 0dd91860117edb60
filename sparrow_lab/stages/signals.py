"""A signal asks a worker to save and leave; the handler only sets a flag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from sparrow_lab.runs.process import STOP_SIGNALS

__all__ = ["STOP_SIGNALS", "StopFlag", "stop_on_signals"]


class StopFlag:
    """Set once a stop was asked for; `reason` names the signal."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    def set(self, reason: str) -> None:
        """Ask to stop; the first reason stays."""
        if self.reason is None:
            self.reason = reason


@contextmanager
def stop_on_signals(flag: StopFlag) -> Iterator[StopFlag]:
    """Route the stop signals to `flag` inside the block, and restore the handlers after it.

    In a thread other than the main one handlers cannot be set: the flag is then only
    set by code.
    """

    def handler(number: int, _frame: FrameType | None) -> None:
        flag.set(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.signal(number, handler) for number in STOP_SIGNALS}
    # A worker may be started with them blocked, so that none is lost before it can listen.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    try:
        yield flag
    finally:
        for number, old in before.items():
            # None: a handler that was not set from Python and cannot be put back
            signal.signal(number, signal.SIG_DFL if old is None else old)
