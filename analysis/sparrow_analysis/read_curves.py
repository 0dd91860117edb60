"""Calibration curves and schedules of a sweep, as frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from sparrow_analysis.cost.run import BYTES
from sparrow_analysis.cost.shape import ModelShape
from sparrow_analysis.expense import decode_speedup, eflops, hardware_for, reads, shape_of
from sparrow_analysis.frames import STATISTICS, frame, number
from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.damage import Damaged
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sparsity.schedule import DENSE

UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, IndexError, ZeroDivisionError)
"""What reading a file with other content than a stage writes may raise; `Damaged` is one."""

STATISTIC_COLUMNS = dict.fromkeys((*STATISTICS, "p05_low", "p05_high"), "float64")

POOLED = {
    "curve": "object",
    "model": "object",
    "page_size": "Int64",
    "trajectory": "object",
    "budget": "float64",
    **STATISTIC_COLUMNS,
    "kv_tokens": "float64",
    "reward": "float64",
    "reads": "float64",
    "eflops": "float64",
    "ceiling_p05": "float64",
}
CURVES = {
    **{k: v for k, v in POOLED.items() if k != "reward"},
    "bin_start": "Int64",
    "bin_width": "Int64",
    "prompts": "Int64",
    "tokens": "Int64",
}
SCHEDULES = {
    "schedule_id": "object",
    "name": "object",
    "tau": "float64",
    "level": "object",
    "dense": "bool",
    "model": "object",
    "page_size": "Int64",
    **STATISTIC_COLUMNS,
    "ceiling_p05": "float64",
    "tokens": "Int64",
    "prompts": "Int64",
    "kv_tokens": "float64",
    "reads": "float64",
    "eflops": "float64",
    "dense_reads": "float64",
    "dense_eflops": "float64",
    "speedup": "float64",
    "hardware": "object",
}
STEPS = {
    "schedule_id": "object",
    "name": "object",
    "model": "object",
    "page_size": "Int64",
    "start": "Int64",
    "budget": "float64",
}
MEASURED = {
    "schedule_id": "object",
    "name": "object",
    "model": "object",
    "page_size": "Int64",
    "tau": "float64",
    "bin_start": "Int64",
    "prompts": "Int64",
    "tokens": "Int64",
    "p05": "float64",
    "mean": "float64",
    "p05_low": "float64",
    "p05_high": "float64",
}


@dataclass
class CurveFrames:
    """See `SweepFrames` for the columns; `left_out` says what could not be read."""

    curves: pd.DataFrame
    pooled: pd.DataFrame
    schedules: pd.DataFrame
    steps: pd.DataFrame
    measured: pd.DataFrame
    left_out: list[str] = field(default_factory=list)


def read_curves(sweep: SweepFolder, points: tuple[PlannedPoint, ...]) -> CurveFrames:
    """Read what the finished calibrate and schedule points of the plan have made."""
    curves: list[dict[str, object]] = []
    pooled: list[dict[str, object]] = []
    schedules: list[dict[str, object]] = []
    steps: list[dict[str, object]] = []
    measured: list[dict[str, object]] = []
    left_out: list[str] = []
    for point in points:
        folder = sweep.point(point.id)
        if point.stage not in ("calibrate", "schedule") or folder.read_result() is None:
            continue
        try:
            if point.stage == "calibrate":
                data = _object(folder.followed(), "curve.json")
                rows, whole = (_curve_rows(point, data, part) for part in ("rows", "pooled"))
                curves += rows
                pooled += whole
            else:
                data = _object(folder.followed(), "schedule.json")
                shape = _shape(sweep, point, points)
                row, levels = _schedule_row(point, data, shape), _step_rows(point, data)
                measured += _measured_rows(point, data)
                schedules.append(row)
                steps += levels
        except UNREADABLE as error:
            left_out.append(left_out_line(point, error))
    return CurveFrames(
        curves=frame(curves, CURVES),
        pooled=frame(pooled, POOLED),
        schedules=frame(schedules, SCHEDULES),
        steps=frame(steps, STEPS),
        measured=frame(measured, MEASURED),
        left_out=left_out,
    )


def left_out_line(point: PlannedPoint, error: Exception | str) -> str:
    """Which point is left out, and why."""
    text = str(error)
    if isinstance(error, Exception) and not isinstance(error, Damaged):
        text = f"what it wrote makes no sense ({type(error).__name__}: {error})"
    return f"{point.stage} {point.short()} ({point.id}): {text}"


def budget_of(value: object) -> float:
    """A budget in tokens; NaN for full attention, which files spell null or the largest int32."""
    budget = number(value)
    return float("nan") if budget >= DENSE else budget


def _object(folder: PointFolder, name: str) -> dict[str, Any]:
    data = read_json(folder.path / name)
    if not isinstance(data, dict):
        there = (folder.path / name).exists()
        raise Damaged(folder.path / name, "it is no whole JSON object" if there else "it is gone")
    return data


def _sparsity(point: PlannedPoint) -> dict[str, Any]:
    return dict(point.config.get("sparsity", {}))


def _model(point: PlannedPoint) -> str:
    return str(point.label.get("model") or point.config.get("model", {}).get("name", ""))


def _curve_rows(point: PlannedPoint, data: dict[str, Any], part: str) -> list[dict[str, object]]:
    page_size, width = int(data["page_size"]), int(data["bin_width"])
    sparsity = {**_sparsity(point), **data.get("settings", {}).get("sparsity", {})}
    shape = shape_of(str(point.config.get("model", {}).get("name", "")))
    layers, landmark = int(sparsity.get("dense_layers", 2)), sparsity.get("landmark", "mean")
    rows: list[dict[str, object]] = []
    for row in data[part]:
        budget = budget_of(row.get("budget"))
        made = {
            "curve": point.id,
            "model": _model(point),
            "page_size": page_size,
            "trajectory": str(row["trajectory"]),
            "budget": budget,
            "ceiling_p05": number(data.get("ceiling", {}).get("p05")),
            "kv_tokens": number(row.get("kv_tokens")),
            "reward": number(row.get("reward")),
            **{k: number(row.get(k)) for k in STATISTIC_COLUMNS},
        }
        if part == "rows":
            middle = row["bin_start"] + (width - 1) / 2
            made |= {k: row[k] for k in ("bin_start", "prompts", "tokens")} | {"bin_width": width}
            made["reads"] = float(reads(row.get("kv_tokens"), budget, middle, page_size, landmark))
            made["eflops"] = float(eflops(shape, budget, middle, page_size, layers, landmark))
        rows.append(made)
    if part == "pooled":
        bins = frame(_curve_rows(point, data, "rows"), CURVES)
        for made in rows:
            budget = number(made["budget"])
            same = bins["budget"].eq(budget) if budget == budget else bins["budget"].isna()
            mine = bins[(bins["trajectory"] == made["trajectory"]) & same]
            for name in ("reads", "eflops"):
                made[name] = _weighted(mine[name], mine["tokens"])
    return rows


def _weighted(values: pd.Series, weights: pd.Series) -> float:
    w = weights.to_numpy(np.float64, na_value=np.nan)
    return float(np.average(values.to_numpy(np.float64), weights=w)) if w.sum() else float("nan")


def _shape(
    sweep: SweepFolder, point: PlannedPoint, points: tuple[PlannedPoint, ...]
) -> ModelShape | None:
    """The shape of a point's model: known by name, or as a run of the sweep has saved it."""
    name = point.config.get("model", {}).get("name", "")
    shape = shape_of(str(name))
    for other in points:
        if shape is not None:
            break
        if other.stage == "train" and other.config.get("model", {}).get("name", "") == name:
            folder = sweep.point(other.id).path / "final"
            shape = shape_of(str(folder)) if (folder / "config.json").is_file() else None
    return shape


def _schedule_row(
    point: PlannedPoint, data: dict[str, Any], shape: ModelShape | None
) -> dict[str, object]:
    measured = data.get("measured") or {}
    budgets = [budget_of(b) for b in data["budgets"]]
    dense = all(b != b for b in budgets)
    row: dict[str, object] = {
        "schedule_id": point.id,
        "name": str(data.get("name") or point.short()),
        "tau": number(data.get("tau")),
        "level": str(data.get("digest") or point.id),
        "dense": dense,
        "model": _model(point),
        "page_size": None if dense else int(data["page_size"]),
        **{k: number(measured.get(k)) for k in (*STATISTIC_COLUMNS, "ceiling_p05")},
        **{k: measured.get(k) for k in ("tokens", "prompts")},
        "kv_tokens": number(measured.get("kv_tokens_mean")),
    }
    return row | _expense_of(point, data, measured, shape)


def _expense_of(
    point: PlannedPoint,
    data: dict[str, Any],
    measured: dict[str, Any],
    saved: ModelShape | None,
) -> dict[str, object]:
    """Reads and eFLOPs a token over the lengths that the re-measurement saw, dense ones beside.

    eFLOPs are for models known by name; a `saved` shape serves the modelled speed-up only.
    """
    bins = measured.get("by_bin") or []
    tokens = np.asarray([number(b.get("tokens")) for b in bins])
    if not len(bins) or not tokens.sum() > 0:
        return {"reads": float("nan"), "eflops": float("nan"), "hardware": ""}
    width = number(point.config.get("calibrate", {}).get("bin_width", 1))
    middle = np.asarray([number(b["bin_start"]) for b in bins]) + (width - 1) / 2
    starts = np.asarray([number(e) for e in data["edges"]])
    budgets = np.asarray([budget_of(b) for b in data["budgets"]])
    budget = budgets[np.searchsorted(starts, middle, "right") - 1]
    size, landmark = int(data["page_size"]), data.get("landmark", "mean")
    layers = int(data.get("dense_layers", 2))
    shape = shape_of(str(point.config.get("model", {}).get("name", "")))
    # what was attended to is measured exactly; only the landmarks come from the bins
    extra = reads(0.0, budget, middle, size, landmark)
    full = np.full(middle.shape, np.nan)
    rollout, model = point.config.get("rollout", {}), point.config.get("model", {})
    speedup = float("nan")
    if saved is not None:
        speedup = decode_speedup(
            saved,
            budget,
            middle,
            tokens,
            size,
            layers,
            int(rollout.get("max_batch", 256)),
            landmark=landmark,
            score=data.get("score", "group_mean"),
            element_bytes=BYTES[model.get("dtype", "float32")],
        )
    return {
        "dense_reads": float(np.average(middle, weights=tokens)),
        "dense_eflops": float(
            np.average(eflops(shape, full, middle, size, layers, landmark), weights=tokens)
        ),
        "speedup": speedup,
        "hardware": "" if saved is None else hardware_for(saved),
        "reads": number(measured.get("kv_tokens_mean")) + float(np.average(extra, weights=tokens)),
        "eflops": float(
            np.average(eflops(shape, budget, middle, size, layers, landmark), weights=tokens)
        ),
    }


def _step_rows(point: PlannedPoint, data: dict[str, Any]) -> list[dict[str, object]]:
    return [
        {
            "schedule_id": point.id,
            "name": str(data.get("name") or point.short()),
            "model": _model(point),
            "page_size": int(data["page_size"]),
            "start": int(edge),
            "budget": budget_of(budget),
        }
        for edge, budget in zip(data["edges"], data["budgets"], strict=True)
    ]


def _measured_rows(point: PlannedPoint, data: dict[str, Any]) -> list[dict[str, object]]:
    measured = data.get("measured") or {}
    return [
        {
            "schedule_id": point.id,
            "name": str(data.get("name") or point.short()),
            "model": _model(point),
            "page_size": int(data["page_size"]),
            "tau": number(data.get("tau")),
            **{k: row.get(k) for k in ("bin_start", "prompts", "tokens")},
            **{k: number(row.get(k)) for k in ("p05", "mean", "p05_low", "p05_high")},
        }
        for row in measured.get("by_bin") or []
    ]
