"""A check whose module takes longer to import and warm up than the limit that the test gives it."""

from __future__ import annotations

import time

time.sleep(0.4)


def warm_up() -> None:
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass


def check() -> str:
    return "done"
