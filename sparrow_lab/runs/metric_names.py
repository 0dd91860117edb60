"""Which metric names may be written: those that MLflow accepts, checked when defined."""

from __future__ import annotations

import posixpath
import re
from functools import lru_cache

ALLOWED = re.compile(r"[A-Za-z0-9_\-. :/]+")
MAX_LENGTH = 250


@lru_cache(maxsize=4096)
def check(name: str) -> str:
    """Return `name`; raise ValueError when MLflow would refuse it.

    Allowed are ASCII letters and digits, `_ - . : /` and the space, at most 250 of
    them, and no empty, `.` or `..` part between slashes (names become paths).
    """
    if not name or len(name) > MAX_LENGTH:
        raise ValueError(f"a metric name has 1 to {MAX_LENGTH} characters, not {len(name)}")
    if not ALLOWED.fullmatch(name):
        bad = "".join(sorted({c for c in name if not ALLOWED.fullmatch(c)}))
        raise ValueError(
            f"metric name {name!r}: {bad!r} is not allowed; letters, digits and '_-. :/' are"
        )
    if name == "." or name.startswith(("/", "..")) or posixpath.normpath(name) != name:
        raise ValueError(f"metric name {name!r}: empty, '.' or '..' part between slashes")
    return name
