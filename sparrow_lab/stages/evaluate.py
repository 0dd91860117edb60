"""Stage `evaluate`: the trained policy on held-out prompts that training never looked at.

The prompts follow those that training watched, so picking a peak cannot flatter this number.
Dense and sparse rollouts are judged side by side, and acceptance is measured again.
"""

from __future__ import annotations

from typing import Any

from sparrow_lab.models.load import load_model
from sparrow_lab.stages.context import StageContext
from sparrow_lab.stages.train import load_schedule
from sparrow_lab.tasks import make_task
from sparrow_lab.train.measure import histogram_of, recompute
from sparrow_lab.train.trainer import Trainer, acceptance_metrics


def run(ctx: StageContext) -> dict[str, Any]:
    """Evaluate `final/` of the train point."""
    config = ctx.config
    trained = ctx.needed("train")
    # the schedule is that of the training run, which this point reaches through its train point
    point = trained.read_point()
    schedule_point = ctx.sweep.point(point.needs["schedule"]).followed()
    schedule = load_schedule(ctx, ctx.made(schedule_point, "schedule.json"))
    weights = {"name": str(trained.path / "final"), "fingerprint": None}
    model, tokenizer = load_model(config.model.model_copy(update=weights))
    trainer = Trainer(model, make_task(config.task, tokenizer), schedule, config)
    count = config.train.evaluate_prompts
    ctx.progress(0, 2, "dense")
    dense, _ = trainer.evaluate(count, start=count)
    ctx.check()
    ctx.progress(1, 2, "sparse")
    sparse, batch = trainer.evaluate(count, start=count, schedule=schedule)
    temperature = config.rollout.temperature
    table = recompute(model, batch, temperature)
    histogram = histogram_of(batch, table, config.calibrate.bin_width, temperature)
    metrics = {k: v for k, v in dense.items() if not k.startswith("time/")}
    metrics |= {
        "evaluate/sparse_reward": sparse["evaluate/reward"],
        "evaluate/sparse_length_mean": sparse["evaluate/length_mean"],
    }
    pooled = acceptance_metrics(histogram)
    metrics |= {k: v for k, v in pooled.items() if "/bin_" not in k}
    ctx.progress(2, 2, f"dense {dense['evaluate/reward']:.2f}")
    seconds = dense["time/evaluate_s"] + sparse["time/evaluate_s"]
    return {"metrics": metrics, "time": {"evaluate_s": seconds}}
