"""A lease: who may act for a sweep, until when, on any node of a cluster.

`leases/<n>.json` names the holder; each new holder creates the next number, which only one
caller can. A holder renews its file, and leaves when a higher number is there. Whether a lease
has run out is told by the clock of the file system alone: the age of its file against that of
one just written. So clocks of nodes that disagree do no harm.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparrow_lab.runs.atomic import create_json, read_json, write_json
from sparrow_lab.runs.process import is_alive, on_this_host, this_process

LEASE_S = 120.0
"""A lease that was not renewed for so long may be taken over."""

Gone = Callable[[Mapping[str, Any]], bool]
"""Whether a holder is known to be gone, for example because its job has left the queue."""


class Lease:
    """One caller's view of a lease.

    Args:
        folder: where its files lie; the same for all who want it.
        seconds: how long it lasts without being renewed.
    """

    def __init__(self, folder: Path, seconds: float = LEASE_S) -> None:
        self.folder, self.seconds = folder, seconds
        self.number = 0
        """The number under which this caller holds it; 0 when it does not."""

    def acquire(self, gone: Gone | None = None, **more: Any) -> bool:
        """Take the lease if nobody holds it; False when somebody does.

        Args:
            gone: asked about a holder whose lease has not run out.
            more: what else the file is to say of this holder, such as its job.
        """
        latest = self._latest()
        if latest and self._in_force(latest, gone, more):
            return False
        self._holder = {**this_process(), **more}
        if not create_json(self._path(latest + 1), self._content()):
            return False
        self.number = latest + 1
        return True

    def renew(self) -> bool:
        """Make it last from now on; False when another holder has taken it over."""
        if not self.held():
            return False
        write_json(self._path(self.number), self._content())
        return self.held()

    def held(self) -> bool:
        """Whether this caller still is the last one that took it."""
        return self.number > 0 and self._latest() == self.number

    def release(self) -> None:
        """Give it back, so that the next one need not wait."""
        if self.held():
            write_json(self._path(self.number), {**self._content(), "released": True})
        self.number = 0

    def holder(self, gone: Gone | None = None) -> dict[str, Any] | None:
        """Who holds it at present: host, pid, job, ...; None when nobody does.

        Writes nothing: the age of a lease is told by this machine's clock here.
        """
        latest = self._latest()
        if not latest or not self._in_force(latest, gone, {}, look_only=True):
            return None
        content = read_json(self._path(latest))
        return content["holder"] if isinstance(content, dict) else {}

    def _in_force(
        self, number: int, gone: Gone | None, me: Mapping[str, Any], look_only: bool = False
    ) -> bool:
        content = read_json(self._path(number))
        if not isinstance(content, dict):
            return self._age(number, look_only) <= self.seconds  # being written, or torn
        holder = content.get("holder") or {}
        if content.get("released") or (me.get("job") and holder.get("job") == me.get("job")):
            return False  # given back, or of this very job before it was requeued
        if on_this_host(holder):
            return is_alive(holder)
        if gone is not None and gone(holder):
            return False
        return self._age(number, look_only) <= float(content.get("seconds", self.seconds))

    def _age(self, number: int, look_only: bool) -> float:
        """Seconds since a lease was written, by the clock of the file system."""
        if look_only:
            try:
                return time.time() - self._path(number).stat().st_mtime
            except FileNotFoundError:
                return 0.0
        probe = self.folder / f".now.{os.getpid()}.{secrets.token_hex(4)}"
        try:
            probe.write_bytes(b"")
            return probe.stat().st_mtime - self._path(number).stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)

    def _content(self) -> dict[str, Any]:
        now = time.time()
        times = {"seconds": self.seconds, "renewed": now, "expires": now + self.seconds}
        return {"schema": 1, "holder": self._holder, **times}

    def _latest(self) -> int:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return 0
        numbers = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return max((int(n) for n in numbers if n.isdecimal()), default=0)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.json"
