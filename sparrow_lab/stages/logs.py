"""Everything that an attempt prints goes to its own log.txt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Send stdout and stderr to the end of `path` inside the block.

    The file descriptors are redirected, so that what C libraries and child processes
    print lands there too, and Python's streams, in case they were replaced before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = (os.dup(1), os.dup(2))
    streams = (sys.stdout, sys.stderr)
    with path.open("a", buffering=1, encoding="utf-8", errors="backslashreplace") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        sys.stdout = sys.stderr = log
        try:
            yield
        finally:
            log.flush()
            sys.stdout, sys.stderr = streams
            for number, handle in enumerate(kept, start=1):
                os.dup2(handle, number)
                os.close(handle)
