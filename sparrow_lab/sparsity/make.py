"""From a configuration to its schedule; for a tau, with the choice from the curve.

No torch: the search asks here which values of tau come out as one schedule.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparrow_lab.config.content import check_pinned
from sparrow_lab.config.schema import (
    Budget,
    Dense,
    PointConfig,
    Preset,
    ScheduleFile,
    SparsityConfig,
    Tau,
)
from sparrow_lab.runs.atomic import read_json
from sparrow_lab.sparsity.calibration import Choice, cheapest_schedule
from sparrow_lab.sparsity.curve import Curve
from sparrow_lab.sparsity.schedule import Schedule


def schedule_settings(sparsity: SparsityConfig) -> dict[str, Any]:
    """The fields that a schedule takes over from the `sparsity` section."""
    return {
        "landmark": sparsity.landmark,
        "score": sparsity.score,
        "dense_layers": sparsity.dense_layers,
        "reserved": sparsity.reserved,
    }


def make_schedule(config: PointConfig, curve_path: Path | None) -> tuple[Schedule, Choice | None]:
    """The schedule that the configuration asks for, and for a tau the reasons of the choice.

    Raises:
        UserError: a schedule that does not fit the run (page size, model, reserved pages, ...).
    """
    s = config.sparsity
    settings = schedule_settings(s)
    model = config.model.name
    match s.schedule:
        case Dense():
            return Schedule.dense(s.page_size, **settings, model=model), None
        case Budget(budget=budget):
            whole = -(-budget // s.page_size) * s.page_size
            name = f"budget={budget}"
            return Schedule.fixed(whole, s.page_size, **settings, model=model, name=name), None
        case Tau(tau=tau):
            assert curve_path is not None
            curve = Curve.from_json(read_json(curve_path), where=str(curve_path))
            choice = cheapest_schedule(
                curve, tau, config.calibrate.rule, **settings, model=model, name=f"tau={tau:g}"
            )
            return choice.schedule, choice
        case ScheduleFile(file=file, sha256=planned):
            check_pinned(planned, Path(file), "sparsity.schedule.file")
            schedule = Schedule.load(Path(file))
        case Preset(preset=preset):
            from sparrow_lab.sparsity.presets import load_preset

            schedule = load_preset(preset)
    schedule.check_fits(s.page_size, model, **settings)
    return schedule, None
