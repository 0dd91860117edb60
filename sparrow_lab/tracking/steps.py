"""The metrics of a task by step, for each kind of stage.

Training and evaluation have events, step by step. Calibration and schedules are curves: MLflow
draws any of its metrics over `step`, so there `step` is the budget or the length, in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.events import Row, read_events
from sparrow_lab.tracking.cells import Cell, cells, of_result, settled
from sparrow_lab.tracking.task import Task

DENSE = 2**31 - 1
"""The budget by which a schedule means full attention; as a number it would only mislead."""
STATISTICS = ("p01", "p05", "p10", "p50", "mean", "p05_low", "p05_high", "reward", "kv_tokens")


def read_cells(task: Task) -> list[Cell]:
    """Every value that MLflow should hold of a task, by step and name.

    Another name of a run gets that run's last values at its last step, not a second copy of
    its curves: it is one run. Result metrics that no event has stand at the last step.
    """
    rows = read_events(task.folder.followed()).rows
    last = max((row[0] for row in rows), default=0)
    rows = [] if task.alias_of else settled(rows, task.live)
    result = task.result or {}
    when = float(result.get("finished") or 0.0)
    known = {name for row in rows for name in row[3]}
    totals = {f"total/{name}": value for name, value in (result.get("time") or {}).items()}
    extra = [
        row
        for metrics in (result.get("metrics") or {}, totals)
        if (row := of_result(metrics, known, last, when))
    ]
    if result and not task.alias_of:
        extra += curve_rows(read_json(task.folder.path / "curve.json"), when)
        extra += schedule_rows(read_json(task.folder.path / "schedule.json"), when)
    return sorted(cells(rows) + cells(join(extra)))


def join(rows: Iterable[Row]) -> list[Row]:
    """One row a step, rising; of two values for one name the later row's counts."""
    merged: dict[int, Row] = {}
    for step, when, attempt, metrics in rows:
        before = merged[step][3] if step in merged else {}
        merged[step] = (step, when, attempt, {**before, **metrics})
    return [merged[step] for step in sorted(merged)]


def curve_rows(curve: Any, when: float) -> list[Row]:
    """`curve/<trajectory>/p05` and others over the budget in tokens; [] without a curve."""
    return [
        (int(entry["budget"]), when, 0, values)
        for entry in _entries(curve, "pooled")
        if (values := _statistics(entry, f"curve/{entry.get('trajectory', 'own')}"))
        and _is_budget(entry.get("budget"))
    ]


def schedule_rows(schedule: Any, when: float) -> list[Row]:
    """`schedule/budget` over the length, and how it did: `measured/p05_by_length` and others."""
    if not isinstance(schedule, dict):
        return []
    steps = zip(schedule.get("edges") or (), schedule.get("budgets") or (), strict=False)
    rows: list[Row] = [
        (int(edge), when, 0, {"schedule/budget": float(budget)})
        for edge, budget in steps
        if _is_budget(budget)
    ]
    for entry in _entries(schedule.get("measured"), "by_bin"):
        values = _statistics(entry, "measured")
        named = {f"{name}_by_length": value for name, value in values.items()}
        rows.append((int(entry["bin_start"]), when, 0, named))
    return rows


def _entries(data: Any, key: str) -> list[Mapping[str, Any]]:
    found = data.get(key) if isinstance(data, dict) else None
    return [entry for entry in found or () if isinstance(entry, dict)]


def _statistics(entry: Mapping[str, Any], prefix: str) -> dict[str, float]:
    return {
        f"{prefix}/{name}": float(entry[name])
        for name in STATISTICS
        if isinstance(entry.get(name), (int, float))
    }


def _is_budget(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < DENSE
