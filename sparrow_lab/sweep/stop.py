"""Ctrl-C for the launcher: once to save and leave, twice to leave at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequests:
    """Counts SIGINT and SIGTERM while `listening`; truth means that a stop was asked for."""

    def __init__(self) -> None:
        self.count = 0
        self.signal = signal.SIGINT

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def hard(self) -> bool:
        """Asked again: do not wait for the workers to save."""
        return self.count > 1

    @property
    def exit_code(self) -> int:
        """The shell's code for the signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + int(self.signal)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count the signals inside the block instead of being ended by them."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._count) for number in numbers}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, signal.SIG_DFL if old is None else old)

    def _count(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.signal = signal.Signals(number)
