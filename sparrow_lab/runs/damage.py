"""Files of a run folder that are there and cannot be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


class Damaged(ValueError):
    """A file that is cut short, overwritten or made by something else; says which and why.

    Files are written whole or not at all (see `atomic`), so this is the disk, a copy that broke
    off or a hand, and no part of such a file is taken for a measurement.
    """

    def __init__(self, path: Path, reason: str) -> None:
        # the last folders are enough to find it, and the same wherever the sweep lies
        _, found, inside = path.as_posix().rpartition("/points/")
        name = inside.partition("/")[2] if found else path.name
        super().__init__(f"{name or path.name} is damaged: {reason}")
        self.path = path


def read_parquet(path: Path) -> pa.Table:
    """The table in a file.

    Raises:
        Damaged: it is no whole Parquet file, or cannot be read at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Damaged(path, short_reason(error)) from None


def short_reason(error: Exception) -> str:
    """The first sentence of what a library says of a file, without the file's name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = re.sub(r"^Could not open Parquet input source '.*?': ", "", lines[0])
    return text.split(". ")[0].rstrip(".")
