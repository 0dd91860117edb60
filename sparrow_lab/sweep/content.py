"""Files that a sweep names: found, and known by their content.

A path is looked for beside the experiment file first and then from where the command
runs. Ids take the content, so that a moved file is the same file and an edited one is not.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sparrow_lab.config.content import check_pinned, content_hash
from sparrow_lab.errors import UserError, nearest


class Files:
    """The files of one sweep; each is read once."""

    def __init__(self, source_dir: Path) -> None:
        self.source_dir = Path(source_dir)
        self._hashes: dict[Path, str] = {}
        self._checked: set[Path] = set()

    def find(self, path: str) -> Path | None:
        """Return the absolute path of a file or folder that the sweep names, or None."""
        given = Path(path).expanduser()
        for candidate in (self.source_dir / given, given):
            with suppress(OSError):  # a name that the file system does not take
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

    def check(self, path: Path, rule: Callable[[Path], None], where: str | None) -> None:
        """Apply a rule to a file or folder, once; its error says where the sweep names it."""
        if path in self._checked:
            return
        try:
            rule(path)
        except UserError as error:
            raise UserError(str(error), where) from None
        self._checked.add(path)

    def hash(self, path: Path, pinned: str | None, where: str | None) -> str:
        """Return the hash of a file or model folder; UserError if it was pinned to another."""
        if path not in self._hashes:
            try:
                self._hashes[path] = content_hash(path)
            except OSError as error:
                raise UserError(f"cannot read '{path}': {error.strerror}", where) from error
        if pinned is not None and pinned != self._hashes[path]:
            check_pinned(pinned, path, where)
        return self._hashes[path]
