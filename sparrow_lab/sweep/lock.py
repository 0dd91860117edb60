"""One launcher a sweep: a lock file that the kernel frees when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.process import is_alive, this_process

NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}
"""What file systems without file locks answer; then the owner's pid and start time decide."""


class Held(UserError):
    """Another process holds the sweep."""


@contextmanager
def sweep_lock(sweep: SweepFolder, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the sweep while the block runs.

    Args:
        wait_s: wait so long for another holder to leave, as a controller does after each round.

    Raises Held, a UserError, when another process holds it; the message names its pid and host.
    Workers do not need the lock and keep running when its holder is killed.
    """
    path = sweep.path / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    deadline = time.monotonic() + wait_s
    try:
        while (owner := _taken(handle)) is not None:
            if time.monotonic() >= deadline:
                raise _held(sweep, owner)
            time.sleep(0.05)
        _write(handle, json.dumps(this_process()).encode())
        yield
        _write(handle, b"")
    finally:
        os.close(handle)


def _taken(handle: int) -> dict[str, Any] | None:
    """Take the lock; who has it instead, if somebody has."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(handle)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        owner = _owner(handle)
        return owner if is_alive(owner) and owner.get("pid") != os.getpid() else None
    return None


def lock_owner(sweep: SweepFolder) -> dict[str, Any] | None:
    """Who runs the sweep at present; None when nobody on this host does."""
    try:
        handle = os.open(sweep.path / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        owner = _owner(handle)
    finally:
        os.close(handle)
    return owner if is_alive(owner) else None


def _held(sweep: SweepFolder, owner: dict[str, Any]) -> Held:
    who = f"pid {owner.get('pid', '?')} on {owner.get('host', '?')}"
    return Held(
        f"another sparrow-lab is running this sweep ({who}); wait for it, "
        f"or watch it with 'sparrow-lab status {sweep.name} --watch'",
        str(sweep.path),
    )


def _owner(handle: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(handle, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _write(handle: int, data: bytes) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, data, 0)
