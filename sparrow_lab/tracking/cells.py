"""What a run's metrics are in MLflow: one value a step and name. Pure functions.

MLflow takes the metric with the greatest (step, time, value) as the last one and keeps
every value ever logged, so a step must be logged once, with its true value. It also turns
an infinity into 1.797e308: non-finite values stay in the run folder, and MLflow gets how
many there were so far, as `nonfinite/<name>` at the steps where they occurred.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sparrow_lab.runs.events import Row

NONFINITE = "nonfinite/"
MAX_NAME = 250


class Cell(NamedTuple):
    """One value of one metric; `time` is milliseconds since 1970."""

    step: int
    name: str
    value: float
    time: int


def settled(rows: Sequence[Row], live: bool) -> list[Row]:
    """The rows that a later attempt will not measure again.

    An attempt that resumed from a checkpoint repeats steps of the attempt before it. While
    it is still `live`, the older rows from its first step on are about to be replaced, so
    they are left out. Once nothing runs, every row counts, as it does for all readers.
    """
    if not live or not rows:
        return list(rows)
    newest = max(row[2] for row in rows)
    first = min(row[0] for row in rows if row[2] == newest)
    return [row for row in rows if row[2] == newest or row[0] < first]


def cells(rows: Iterable[Row]) -> list[Cell]:
    """All values that MLflow is given, by step and then by name."""
    result: list[Cell] = []
    seen: dict[str, int] = {}
    for step, when, _, metrics in sorted(rows, key=lambda row: row[0]):
        time = round(when * 1000)
        for name, value in metrics.items():
            if not math.isfinite(value):
                name = (NONFINITE + name)[:MAX_NAME]
                seen[name] = seen.get(name, 0) + 1
                value = float(seen[name])
            result.append(Cell(step, name, value, time))
    return sorted(result)


def of_result(metrics: Mapping[str, object], known: set[str], step: int, when: float) -> Row | None:
    """A row of the result's metrics that no event has (`evaluate/peak`); None if there is none.

    Values come as JSON has them: numbers, or nan, inf, -inf as text. Anything else is left out.
    """
    left: dict[str, float] = {}
    for name, value in metrics.items():
        if name in known or isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        try:
            left[name] = float(value)
        except ValueError:
            continue
    return (step, when, 0, left) if left else None


def digest(values: Iterable[Cell]) -> str:
    """Hash of steps, names and values, in order. Times are left out: they may be restated."""
    total = hashlib.sha256()
    for cell in values:
        total.update(f"{cell.step} {cell.name} {cell.value!r}\n".encode())
    return total.hexdigest()[:16]


def mark(cell: Cell) -> str:
    """Eight hex digits for a name and value, to remember the newest step cell by cell."""
    return hashlib.sha256(f"{cell.name} {cell.value!r}".encode()).hexdigest()[:8]
