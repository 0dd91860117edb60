"""Small sweeps of a shipped tiny model, run through the worker with the real stages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparrow_lab.config.schema import PointConfig
from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.stages import STAGES, StageContext, run_task
from sparrow_lab.stages.signals import StopFlag

BASE: dict[str, Any] = {
    "model": {"name": "tiny-s"},
    "task": {"params": {"hops_max": 3, "max_hops": 3}},
    "sparsity": {
        "page_size": 8,
        "dense_layers": 1,
        "reserved": {"first_tokens": 8, "last_tokens": 16},
        "schedule": {"budget": 40},
    },
    "calibrate": {
        "prompts": 8,
        "samples": 1,
        "ladder": 3,
        "bin_width": 8,
        "min_prompts": 3,
        "bootstrap": 10,
    },
    "train": {
        "steps": 4,
        "prompts": 2,
        "samples": 3,
        "lr": 5e-4,
        "evaluate_every": 2,
        "evaluate_prompts": 6,
        "checkpoint_every": 2,
    },
    "seed": 3,
}

VERDICT = {"metric": "evaluate/reward", "fall": 0.25, "floor": None, "stay": 2}


def make_config(**sections: Any) -> PointConfig:
    """`BASE` with these entries over it, section by section."""
    merged = {
        key: {**BASE.get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in {**BASE, **sections}.items()
    }
    return PointConfig.model_validate(merged)


def make_sweep(path: Path, config: PointConfig) -> SweepFolder:
    """A plan of one point a stage: ca00 -> 5c00 -> 7a00 -> e000."""
    dump = config.model_dump(mode="json")
    needs = {"schedule": {"calibrate": "ca00"}} if "tau" in dump["sparsity"]["schedule"] else {}
    needs |= {"train": {"schedule": "5c00"}, "evaluate": {"train": "7a00"}}
    ids = {"calibrate": "ca00", "schedule": "5c00", "train": "7a00", "evaluate": "e000"}
    points = [PlannedPoint(i, s, needs.get(s, {}), {}, dump) for s, i in ids.items()]
    sweep = SweepFolder(path)
    sweep.write_plan(Plan(path.name, VERDICT, tuple(points)))
    return sweep


def run(sweep: SweepFolder, *ids: str, train: str | None = None) -> None:
    """Run these points in this process; `train` names another train stage."""
    stages = {**STAGES, **({"train": train} if train else {})}
    run_task(str(sweep.path), list(ids), stages)


def result_of(point: PointFolder) -> dict[str, Any]:
    result = point.read_result()
    assert result is not None
    return result


def context_of(sweep: SweepFolder, point_id: str) -> StageContext:
    """A claimed attempt at a point, for calling a stage directly."""
    folder = sweep.point(point_id)
    point = folder.read_point()
    previous = folder.attempts()
    attempt = folder.new_attempt({})
    config = PointConfig.model_validate(point.config)
    return StageContext(sweep, folder, point, config, attempt, StopFlag(), previous=previous)


def untimed(metrics: dict[str, float]) -> dict[str, float]:
    """Metrics that a repetition must reproduce."""
    return {
        k: v
        for k, v in metrics.items()
        if not k.startswith("time/") and k != "rollout/tokens_per_s"
    }


def numbers_of(point: PointFolder) -> list[tuple[int, dict[str, str]]]:
    """All events of a point by step, without times; as text, so that NaN equals NaN."""
    rows = read_events(point).rows
    return [
        (step, {k: repr(v) for k, v in sorted(untimed(metrics).items())})
        for step, _, _, metrics in rows
    ]


def table_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def ids_of(prompts: Iterable[Any]) -> set[str]:
    return {p.id for p in prompts}
