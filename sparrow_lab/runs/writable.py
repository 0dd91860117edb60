"""Whether an output folder can be written, asked before the work whose result goes there."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sparrow_lab.errors import UserError


def check_writable(folder: Path, where: str) -> None:
    """Try to write where `folder` is, or would be made; leaves nothing behind.

    Raises UserError: a file is in its place, or nothing can be written there.
    """
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError("is a file; name a folder", where)
        with tempfile.TemporaryFile(dir=nearest_folder(folder)) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write into the output folder: {reason}", where) from error


def nearest_folder(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = path.absolute()
    return next((p for p in (path, *path.parents) if p.exists()), path)
