"""One importer at a time: a lock file that names its owner.

The file is created whole and exclusively, so it works on network file systems too. A lock
whose process has gone, or that another host has not renewed for a minute, is taken over.
The owner looks before each write whether the lock is still its own.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

from sparrow_lab.runs.atomic import create_json, read_json, write_json
from sparrow_lab.runs.process import is_alive, on_this_host, this_process

STALE_S = 60.0
"""A lock of another host, where no process can be looked up, is dead when so long not renewed."""
RENEW_S = 15.0
POLL_S = 0.2


class LeaseBusy(Exception):
    """Another importer is at work; the message says which."""


class LeaseLost(Exception):
    """Another importer has taken the lock over."""


class Lease:
    """`with Lease(path, wait_s):` holds the lock file at `path` over the block.

    Raises LeaseBusy when a living owner holds it for longer than `wait_s` seconds.
    """

    def __init__(self, path: Path, wait_s: float = 0.0) -> None:
        self.path = Path(path)
        self._wait_s = wait_s
        self._token = secrets.token_hex(8)
        self._renewed = 0.0

    def __enter__(self) -> Lease:
        until = time.monotonic() + self._wait_s
        while not self._claim():
            if time.monotonic() >= until:
                raise LeaseBusy(describe(read_json(self.path)))
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_mine():
            self.path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Say that the owner is alive. Raises LeaseLost when the lock is no longer its own."""
        if not self._is_mine():
            raise LeaseLost(f"another importer has taken over: {describe(read_json(self.path))}")
        if time.monotonic() - self._renewed >= RENEW_S:
            self._renewed = time.monotonic()
            write_json(self.path, self._content())

    def _claim(self) -> bool:
        if create_json(self.path, self._content()):
            self._renewed = time.monotonic()
            return True
        holder = read_json(self.path)
        if isinstance(holder, dict) and not is_stale(holder):
            return False
        if holder is None and self._age() < STALE_S:
            return False  # just being created, or just released
        self._set_aside(holder)
        return False

    def _set_aside(self, stale: Any) -> None:
        """Move a dead lock away; put it back if a living one was caught instead."""
        aside = self.path.with_name(f".{self.path.name}.{self._token}.stale")
        try:
            self.path.replace(aside)
        except FileNotFoundError:
            return
        caught = read_json(aside)
        if caught != stale and isinstance(caught, dict) and not is_stale(caught):
            create_json(self.path, caught)
        aside.unlink(missing_ok=True)

    def _content(self) -> dict[str, Any]:
        return {**this_process(), "token": self._token}

    def _is_mine(self) -> bool:
        holder = read_json(self.path)
        return isinstance(holder, dict) and holder.get("token") == self._token

    def _age(self) -> float:
        try:
            return time.time() - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def is_stale(holder: dict[str, Any]) -> bool:
    """Whether the lock's owner is dead (same host) or has fallen silent (another host)."""
    if on_this_host(holder):
        return not is_alive(holder)
    try:
        return time.time() - float(holder["time"]) > STALE_S
    except (KeyError, TypeError, ValueError):
        return True


def describe(holder: Any) -> str:
    """`process 123 on host, since 12:00:00`, for messages."""
    if not isinstance(holder, dict):
        return "an importer that has just started or ended"
    since = time.strftime("%H:%M:%S", time.localtime(float(holder.get("time", 0))))
    return f"process {holder.get('pid')} on {holder.get('host')}, last seen {since}"
