"""Files and folders that a config names, known by their content.

The planner writes the hashes into a point (`sha256`, `fingerprint`); whoever opens the
file later calls `check_pinned`, so that a file that was edited in between is refused.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sparrow_lab.errors import UserError

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt"}
_TEXTS = {".json", ".txt", ".model", ".jinja"}
_EDGE = 1 << 16


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def folder_fingerprint(folder: Path) -> str:
    """Return a hash of a model folder: config and tokenizer whole, weights by their ends.

    Weights can have many gigabytes, so only their size and 64 KiB from each end are read:
    the header of a safetensors file and values of its last tensors are in there. Files
    that decide nothing (a README, say) and subfolders do not count.
    """
    sha = hashlib.sha256()
    for path in sorted(p for p in folder.iterdir() if p.is_file()):
        if path.suffix in _TEXTS:
            sha.update(f"{path.name}\0{file_sha256(path)}\0".encode())
        elif path.suffix in _WEIGHTS:
            sha.update(f"{path.name}\0{path.stat().st_size}\0".encode())
            sha.update(_ends(path))
    return sha.hexdigest()[:32]


def content_hash(path: Path) -> str:
    """Return the hash that pins a file or a model folder."""
    return folder_fingerprint(path) if path.is_dir() else file_sha256(path)


def check_pinned(pinned: str | None, path: Path, where: str | None = None) -> None:
    """Refuse a file or model folder whose content is not the one that was planned.

    Args:
        pinned: the hash from the config; None accepts everything.
    """
    if pinned is None:
        return
    found = content_hash(path)
    if found != pinned:
        raise UserError(
            f"the content of '{path}' has changed since it was pinned: its hash is "
            f"{found[:12]}, not {pinned[:12]}",
            where,
        )


def _ends(path: Path) -> bytes:
    with path.open("rb") as stream:
        start = stream.read(_EDGE)
        stream.seek(max(0, path.stat().st_size - _EDGE))
        return start + stream.read(_EDGE)
