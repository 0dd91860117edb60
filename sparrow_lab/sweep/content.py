"""Files that a sweep names: found, and known by their content.

A path is looked for beside the experiment file first and then from where the command
runs. Ids take the content, so that a moved file is the same file and an edited one is not.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sparrow_lab.errors import UserError, nearest

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt"}
_TEXTS = {".json", ".txt", ".model", ".jinja"}
_EDGE = 1 << 16


class Files:
    """The files of one sweep; each is read once."""

    def __init__(self, source_dir: Path) -> None:
        self.source_dir = Path(source_dir)
        self._sha256: dict[Path, str] = {}
        self._fingerprints: dict[Path, str] = {}

    def find(self, path: str) -> Path | None:
        """Return the absolute path of a file or folder that the sweep names, or None."""
        given = Path(path).expanduser()
        for candidate in (self.source_dir / given, given):
            if candidate.exists():
                return candidate.resolve()
        return None

    def require(self, path: str, what: str, where: str | None) -> Path:
        """Find a file; UserError that names the places looked in, and the nearest name."""
        found = self.find(path)
        if found is not None and found.is_file():
            return found
        folder = (self.source_dir / Path(path).expanduser()).parent
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        places = " or ".join(sorted({f"'{self.source_dir.resolve()}'", f"'{Path.cwd()}'"}))
        raise UserError(
            f"there is no {what} '{path}' in {places}{nearest(Path(path).name, names)}", where
        )

    def sha256(self, path: Path) -> str:
        """Return the SHA-256 of a file, in hex."""
        if path not in self._sha256:
            with path.open("rb") as stream:
                self._sha256[path] = hashlib.file_digest(stream, "sha256").hexdigest()
        return self._sha256[path]

    def fingerprint(self, folder: Path) -> str:
        """Return a hash of a model folder: config and tokenizer whole, weights by their ends.

        Weights can have many gigabytes, so only their size and 64 KiB from each end are
        read: the header of a safetensors file and values of its last tensors are in there.
        """
        if folder not in self._fingerprints:
            sha = hashlib.sha256()
            for path in sorted(p for p in folder.iterdir() if p.is_file()):
                if path.suffix in _TEXTS:
                    sha.update(f"{path.name}\0{self.sha256(path)}\0".encode())
                elif path.suffix in _WEIGHTS:
                    sha.update(f"{path.name}\0{path.stat().st_size}\0".encode())
                    sha.update(_ends(path))
            self._fingerprints[folder] = sha.hexdigest()[:32]
        return self._fingerprints[folder]


def _ends(path: Path) -> bytes:
    with path.open("rb") as stream:
        start = stream.read(_EDGE)
        stream.seek(max(0, path.stat().st_size - _EDGE))
        return start + stream.read(_EDGE)
