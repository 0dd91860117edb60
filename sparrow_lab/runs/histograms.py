"""Acceptance histograms of an attempt: one Parquet part a checkpoint, one file at the end."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sparrow_lab.runs.atomic import write_bytes
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.damage import read_parquet
from sparrow_lab.runs.layout import PointFolder

if TYPE_CHECKING:
    import pyarrow as pa

    from sparrow_lab.acceptance.histogram import AcceptanceHistogram


class HasTable(Protocol):
    """What can be written: a histogram that turns into a table with a `step` column."""

    def to_table(self, step: int) -> Any: ...


class HistogramWriter:
    """Collects the histograms of the steps since the last part and writes them together."""

    def __init__(self, attempt: AttemptFolder) -> None:
        self._attempt = attempt
        self._tables: list[pa.Table] = []

    def add(self, step: int, histogram: HasTable) -> None:
        """Keep the histogram of a step in memory until `flush`."""
        self._tables.append(histogram.to_table(step))

    def flush(self, step: int) -> None:
        """Write what was added as `histograms/part-<step>.parquet`; nothing to write, no file."""
        if self._tables:
            path = self._attempt.histograms / f"part-{step:08d}.parquet"
            write_bytes(path, _parquet(_concat(self._tables)))
            self._tables = []


def compact(attempt: AttemptFolder) -> None:
    """Join the parts into `histograms.parquet` and remove them; without parts do nothing."""
    parts = _parts(attempt)
    if parts:
        target = attempt.path / "histograms.parquet"
        if not target.exists():
            write_bytes(target, _parquet(_concat([read_parquet(part) for part in parts])))
        for part in parts:
            part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a stray file in it; the parts are gone all the same
            attempt.histograms.rmdir()


def read_tables(point: PointFolder) -> list[tuple[int, pa.Table]]:
    """Each step's rows, by step; for each step the highest attempt wins. Empty if none.

    Raises Damaged when a file cannot be read.
    """
    import pyarrow.compute as pc

    merged: dict[int, pa.Table] = {}
    for attempt in point.attempts():
        whole = attempt.path / "histograms.parquet"
        for path in [whole] if whole.exists() else _parts(attempt):
            table = read_parquet(path)
            for step in sorted(set(table.column("step").to_pylist())):
                merged[step] = table.filter(pc.equal(table.column("step"), step))
    return [(step, merged[step]) for step in sorted(merged)]


def read_histograms(point: PointFolder) -> list[tuple[int, AcceptanceHistogram]]:
    """Each step's histogram, by step; for each step the highest attempt wins."""
    from sparrow_lab.acceptance.histogram import AcceptanceHistogram

    return [(step, AcceptanceHistogram.from_table(table)) for step, table in read_tables(point)]


def _parts(attempt: AttemptFolder) -> list[Path]:
    return sorted(attempt.histograms.glob("part-*.parquet"))


def _concat(tables: list[pa.Table]) -> pa.Table:
    import pyarrow as pa

    return pa.concat_tables(tables)


def _parquet(table: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())
