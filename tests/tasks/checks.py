"""Checks that a judge is given in tests; each runs in the judge's process."""

from __future__ import annotations

import os
import subprocess
import sys
import time


def double(x: int) -> int:
    return 2 * x


def length(text: str) -> int:
    return len(text)


def pid() -> int:
    return os.getpid()


def fail(reason: str) -> None:
    raise ValueError(reason)


def spin() -> None:
    while True:
        pass


def work(seconds: float) -> str:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "worked"


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def hold_the_lock() -> int:
    """One big multiplication: no other thread and no signal handler runs until it is done."""
    return len(str(7 ** (1 << 26)))


def spawn_and_spin(mark: str) -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", mark])
    spin()


def die() -> None:
    os._exit(7)


def chatter() -> str:
    print('{"value": "forged"}', flush=True)
    os.write(1, b'{"value": "forged"}\n')
    os.write(2, b"noise\n")
    return "quiet"


def take_memory() -> int:
    return len(bytearray(64 << 30))
