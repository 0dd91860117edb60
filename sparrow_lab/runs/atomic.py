"""Files that are whole or absent: written under a temporary name, fsynced, renamed."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Put `data` at `path`; a reader, or a machine that loses power, sees the old file or the new.

    The parent folder is made if need be. Raises OSError (no space, not writable) and
    then leaves neither a half file nor the temporary one. `durable=False` leaves out the
    fsync, for files that can be made again: after a loss of power they may be empty.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        _write(temporary, data, durable)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Put UTF-8 `text` at `path`, whole or not at all."""
    write_bytes(path, text.encode("utf-8"), durable)


def write_json(path: Path, obj: Any, durable: bool = True) -> None:
    """Put `obj` at `path` as indented JSON. Raises ValueError for NaN or infinity in it."""
    text = json.dumps(obj, indent=1, allow_nan=False, ensure_ascii=False)
    write_text(path, text + "\n", durable)


def create_json(path: Path, obj: Any) -> bool:
    """Create `path` with `obj` unless it exists; True for the one caller that created it.

    The content is linked into place whole, so that whoever sees the file can read it.
    Where the file system has no hard links, it is created with O_EXCL and then filled.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(obj, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8")
    temporary = _temporary(path)
    try:
        _write(temporary, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            try:
                _write(path, data)
            except FileExistsError:
                return False
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)
    return True


def read_json(path: Path | str) -> Any | None:
    """Return what the file holds; None when it is absent, empty or not (whole) JSON."""
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def sync_folder(folder: Path) -> None:
    """Make a rename durable. File systems that cannot sync a folder are left at that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _temporary(path: Path) -> Path:
    """A name beside `path` that no other process uses; hidden, so that no listing takes it."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _write(path: Path, data: bytes, durable: bool = True) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        if durable:
            os.fsync(stream.fileno())
