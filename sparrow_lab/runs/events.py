"""What a stage measured, step by step: one JSON object a line, Parquet when it has ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparrow_lab.runs import metric_names
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.damage import Damaged, read_parquet, short_reason
from sparrow_lab.runs.layout import PointFolder, spelled

Row = tuple[int, float, int, dict[str, float]]
"""(step, wall time in seconds since 1970, attempt, metrics)."""


class EventWriter:
    """Appends to `events.jsonl` of an attempt; each line reaches the file at once."""

    def __init__(self, attempt: AttemptFolder) -> None:
        self._number = attempt.number
        attempt.path.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._handle: int | None = os.open(attempt.events_path, flags, 0o666)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics of a step; several calls for one step add up, the last value counts.

        Raises ValueError for a metric name that MLflow would refuse, TypeError for a
        value that is no number. Non-finite values are kept as nan, inf, -inf.
        """
        if self._handle is None:
            raise ValueError("the event writer is closed")
        values = {metric_names.check(name): _number(name, v) for name, v in metrics.items()}
        line = {
            "step": int(step),
            "time": time.time(),
            "attempt": self._number,
            "metrics": spelled(values),
        }
        os.write(self._handle, (json.dumps(line, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class Events:
    """The merged events of a point: one row a step, from the highest attempt that wrote it."""

    rows: list[Row] = field(default_factory=list)
    dropped_lines: int = 0
    """Lines that could not be read (a torn last line after a kill)."""

    @property
    def steps(self) -> list[int]:
        """The steps, rising."""
        return [row[0] for row in self.rows]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of a metric, where it was written; both empty if nowhere."""
        pairs = [(row[0], row[3][name]) for row in self.rows if name in row[3]]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def names(self) -> list[str]:
        """Every metric name, sorted."""
        return sorted({name for row in self.rows for name in row[3]})


def read_events(point: PointFolder) -> Events:
    """Merge the events of all attempts; for each step the highest attempt wins.

    Raises Damaged when a compacted file, or all of a file of lines, cannot be read.
    """
    merged: dict[int, Row] = {}
    dropped = 0
    for attempt in point.attempts():
        rows, torn = read_attempt(attempt)
        dropped += torn
        merged.update({row[0]: row for row in rows})
    return Events([merged[step] for step in sorted(merged)], dropped)


def read_attempt(attempt: AttemptFolder) -> tuple[list[Row], int]:
    """One attempt's rows, one a step and rising, and the number of unreadable lines.

    Raises Damaged as `read_events`.
    """
    parquet = attempt.path / "events.parquet"
    if parquet.exists():
        return _from_parquet(parquet)
    by_step: dict[int, Row] = {}
    dropped = 0
    for row in _lines(attempt.events_path):
        if row is None:
            dropped += 1
        else:
            before = by_step[row[0]][3] if row[0] in by_step else {}
            by_step[row[0]] = (row[0], row[1], row[2], {**before, **row[3]})
    return [by_step[step] for step in sorted(by_step)], dropped


def read_last(attempt: AttemptFolder, tail_bytes: int = 1 << 16) -> dict[str, float]:
    """The last value of each metric near the end of a running attempt's events; cheap to call."""
    try:
        with attempt.events_path.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - tail_bytes))
            lines = stream.read().split(b"\n")
    except FileNotFoundError:
        return {}
    last: dict[str, float] = {}
    for line in lines:
        row = _parse(line) if line else None
        last.update(row[3] if row else {})
    return last


def compact(attempt: AttemptFolder) -> None:
    """Turn `events.jsonl` into `events.parquet` (long form); without events do nothing.

    Columns: step int64, time float64, attempt int32, name string, value float64.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sparrow_lab.runs.atomic import write_bytes

    if not attempt.events_path.exists():
        return
    if not (attempt.path / "events.parquet").exists():
        rows, dropped = read_attempt(attempt)
        long = [(s, t, a, name, value) for s, t, a, m in rows for name, value in m.items()]
        columns = list(zip(*long, strict=True)) or [()] * 5
        table = pa.table(
            {
                "step": pa.array(columns[0], pa.int64()),
                "time": pa.array(columns[1], pa.float64()),
                "attempt": pa.array(columns[2], pa.int32()),
                "name": pa.array(columns[3], pa.string()),
                "value": pa.array(columns[4], pa.float64()),
            }
        ).replace_schema_metadata({"dropped_lines": str(dropped)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        write_bytes(attempt.path / "events.parquet", sink.getvalue().to_pybytes())
    attempt.events_path.unlink(missing_ok=True)


def _from_parquet(path: Path) -> tuple[list[Row], int]:
    table = read_parquet(path)
    names = ("step", "time", "attempt", "name", "value")
    by_step: dict[int, Row] = {}
    try:
        for step, when, number, name, value in zip(
            *(table.column(n).to_pylist() for n in names), strict=True
        ):
            row = by_step.setdefault(int(step), (int(step), float(when), int(number), {}))
            row[3][str(name)] = float(value)
        dropped = int((table.schema.metadata or {}).get(b"dropped_lines", b"0"))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(path, f"{', '.join(names)} expected; {short_reason(error)}") from None
    return [by_step[s] for s in sorted(by_step)], dropped


def _lines(path: Path) -> Iterator[Row | None]:
    """Each line as a row, None for one that is torn or otherwise unreadable."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Damaged(path, error.strerror or "it cannot be read") from None
    for line in data.split(b"\n"):
        if line:
            yield _parse(line)


def _parse(line: bytes) -> Row | None:
    try:
        data: dict[str, Any] = json.loads(line)
        metrics = {str(k): float(v) for k, v in data["metrics"].items()}
        return int(data["step"]), float(data["time"]), int(data["attempt"]), metrics
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _number(name: str, value: float) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"metric {name!r} is text, not a number: {value!r}")
    return float(value)
