"""Which levels are one training run: told from the curve, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sparsity.make import make_schedule
from sparrow_lab.stages.identical import training_key
from sparrow_lab.sweep.canonical import form


def run_key(sweep: SweepFolder, points: Sequence[PlannedPoint]) -> str | None:
    """What decides the training run among these points, whatever its seed.

    Args:
        points: one training run with what it needs, as they are planned.

    Returns:
        A hash over its config and the schedule that it gets, or None while the curve that the
        schedule is chosen from is not there yet.
    """
    by_stage = {p.stage: p for p in points}
    train = by_stage["train"]
    digest = _digest(sweep, by_stage)
    return None if digest is None else training_key({**train.config, "seed": 0}, digest)


def _digest(sweep: SweepFolder, by_stage: Mapping[str, PlannedPoint]) -> str | None:
    """The digest of the schedule: that of the file when it is made, else of the choice to come."""
    point = by_stage["schedule"]
    made = read_json(sweep.point(point.id).followed().path / "schedule.json")
    if isinstance(made, dict) and made.get("digest"):
        return str(made["digest"])
    curve: Path | None = None
    if form(point.config) == "tau":
        curve = sweep.point(point.needs["calibrate"]).followed().path / "curve.json"
        if not curve.is_file():
            return None
    return _chosen(point.config, curve)


def _chosen(config: dict[str, Any], curve: Path | None) -> str | None:
    try:
        schedule, _ = make_schedule(PointConfig.model_validate(config), curve)
    except UserError:
        return None  # the schedule stage will say what is wrong
    return schedule.digest
