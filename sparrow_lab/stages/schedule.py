"""Stage `schedule`: make the final schedule of a point and re-measure it on fresh prompts.

The re-measurement is a run's predictor: acceptance of the initial policy, rolled out under the very
schedule that training will use, on prompts that took no part in choosing it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparrow_lab.config.schema import PointConfig
from sparrow_lab.models.load import load_model
from sparrow_lab.sparsity.make import make_schedule
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages.calibrate import Meter
from sparrow_lab.stages.context import StageContext
from sparrow_lab.tasks import make_task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from sparrow_lab.tasks.base import Task


def remeasure(
    model: PreTrainedModel, task: Task, config: PointConfig, schedule: Schedule
) -> dict[str, Any]:
    """The `measured` block of a schedule: acceptance under itself on the `verify` split."""
    meter = Meter(model, task, config, "verify", config.calibrate.samples)
    dense = meter.roll(Schedule.dense(config.sparsity.page_size))
    _, ceiling, _ = meter.statistics(dense, meter.own(dense))
    batch = dense if schedule.is_dense else meter.roll(schedule)
    by_bin, pooled, _ = meter.statistics(batch, meter.own(batch))
    kv_tokens = pooled.pop("kv_tokens")
    return {
        **pooled,
        "ceiling_p05": ceiling["p05"],
        "by_bin": by_bin,
        "kv_tokens_mean": kv_tokens,
        "length_mean": float(batch.generated_N.double().mean()),
        "prompt_length_mean": float(batch.prompt_length_N.double().mean()),
        "reward": meter.reward(batch),
        "dense_reward": meter.reward(dense),
        "estimator": config.calibrate.estimator,
        "temperature": config.rollout.temperature,
    }


def run(ctx: StageContext) -> dict[str, Any]:
    """Write `schedule.json` with its measurement."""
    config = ctx.config
    needs = ctx.point.needs
    curve = ctx.made(ctx.needed("calibrate"), "curve.json") if "calibrate" in needs else None
    schedule, choice = make_schedule(config, curve)
    ctx.progress(0, 1, "re-measuring")
    model, tokenizer = load_model(config.model)
    measured = remeasure(model, make_task(config.task, tokenizer), config, schedule)
    schedule = replace(schedule, measured=measured)
    schedule.save(ctx.folder.path / "schedule.json")
    ctx.progress(1, 1, f"p5 {measured['p05']:.3f}")
    metrics = {f"acceptance/{k}": measured[k] for k in ("p01", "p05", "p10", "p50", "mean")}
    metrics["rollout/kv_tokens_mean"] = measured["kv_tokens_mean"]
    metrics["reward/mean"] = measured["reward"]
    extras: dict[str, Any] = {"schedule_digest": schedule.digest, "schedule_name": schedule.name}
    if choice is not None:
        extras["unreached_bins"] = list(choice.unreached)
        extras["undecided_bins"] = list(choice.undecided)
        extras["measured_to"] = choice.measured_to
    return {"metrics": metrics, "time": {}, **extras}
