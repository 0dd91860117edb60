"""What was decided and what happened in a sweep: one JSON object a line, only ever added to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.runs.layout import spelled

Event = dict[str, Any]
"""{"time", "event", ...}; most have "point", many "attempt" or "token"."""


class Ledger:
    """`ledger.jsonl` of a sweep. Several processes may append; a torn line spoils only itself."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._offset = 0

    def append(self, event: str, **fields: Any) -> None:
        """Add one event and sync it to the disk before returning."""
        self.append_all([{"event": event, **fields}])

    def append_all(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events in one write, each with the present time. Raises OSError (no space)."""
        lines = [json.dumps({"time": time.time(), **spelled(e)}, allow_nan=False) for e in events]
        if not lines:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            size = os.fstat(handle).st_size
            torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if torn else "") + "\n".join(lines) + "\n").encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def read(self) -> list[Event]:
        """Every readable event, oldest first; empty when there is no ledger."""
        self._offset = 0
        return list(self.news())

    def news(self) -> Iterator[Event]:
        """The events added since the last `read` or `news`; an unfinished last line waits."""
        try:
            with self.path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.split(b"\n"):
            event = _parse(line)
            if event is not None:
                yield event


class NoLedger:
    """Stands in for the ledger where it must not be written: on the nodes of a cluster."""

    def append(self, event: str, **fields: Any) -> None:
        """Write nothing; the attempt's own files hold what happened."""


def _parse(line: bytes) -> Event | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
