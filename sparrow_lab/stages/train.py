"""Stage `train`: GRPO on sparse rollouts under the point's schedule, to be resumed at any step."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError
from sparrow_lab.models.device import where_is
from sparrow_lab.models.load import load_model
from sparrow_lab.models.save import save_model
from sparrow_lab.runs.events import EventWriter, read_events
from sparrow_lab.runs.histograms import HistogramWriter
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages.context import Interrupted, StageContext
from sparrow_lab.tasks import make_task
from sparrow_lab.train.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from sparrow_lab.train.detectors import detector_metrics
from sparrow_lab.train.trainer import Trainer


def load_schedule(ctx: StageContext, path: Path) -> Schedule:
    """A schedule that a schedule stage made, checked against the run."""
    schedule = Schedule.load(path)
    s = ctx.config.sparsity
    schedule.check_fits(
        schedule.page_size if schedule.is_dense else s.page_size,
        None,
        landmark=s.landmark,
        score=s.score,
        dense_layers=s.dense_layers,
        reserved=s.reserved,
    )
    return schedule


def run(ctx: StageContext) -> dict[str, Any]:
    """Train for the configured steps; returns the final metrics and where time went."""
    config = ctx.config
    schedule = load_schedule(ctx, ctx.made(ctx.needed("schedule"), "schedule.json"))
    model, tokenizer = load_model(config.model)
    trainer = Trainer(model, make_task(config.task, tokenizer), schedule, config)
    engine = type(trainer.engine).__name__
    print(f"{config.model.dtype} on {where_is(model)}; {engine} takes over each update", flush=True)
    must_agree = {"schedule": schedule.digest, "point": ctx.point.id}
    start, history = _resume(ctx, trainer, must_agree)
    verdict = ctx.sweep.read_plan().verdict
    judged = str(verdict.get("metric", "evaluate/reward"))
    steps = config.train.steps
    histograms = HistogramWriter(ctx.attempt)
    with EventWriter(ctx.attempt) as events:
        for step in range(start, steps + 1):
            metrics: dict[str, float] = {}
            if step % config.train.evaluate_every == 0 or step == steps:
                evaluation, _ = trainer.evaluate(config.train.evaluate_prompts)
                metrics.update(evaluation)
                history["evaluate"].append(evaluation["evaluate/reward"])
            if step < steps:
                result = trainer.step(step)
                metrics.update(result.metrics)
                histograms.add(step, result.histogram)
                history["length"].append(metrics["response/length_mean"])
                history["entropy"].append(metrics["policy/entropy"])
            if judged in metrics:
                history["verdict"].append(metrics[judged])
            metrics.update(
                detector_metrics(
                    history["length"], history["entropy"], history["verdict"], metrics, verdict
                )
            )
            if not ctx.still_owner():
                raise Interrupted("a later attempt has claimed this point")
            events.write(step, metrics)
            _show(ctx, step, steps, metrics, history)
            stop = step < steps and ctx.should_stop()
            if step < steps and (stop or (step + 1) % config.train.checkpoint_every == 0):
                histograms.flush(step)
                state = {**must_agree, "history": history}
                save_checkpoint(ctx.attempt.checkpoints, step + 1, model, trainer.optimizer, state)
            if stop:
                raise Interrupted(f"asked to stop after step {step + 1}")
        histograms.flush(steps)
    _save_final(ctx.folder.path / "final", model, tokenizer)
    return _result(ctx, schedule)


def _resume(
    ctx: StageContext, trainer: Trainer, must_agree: dict[str, Any]
) -> tuple[int, dict[str, list[float]]]:
    """Load the newest checkpoint of the earlier attempts, if there is one."""
    history: dict[str, list[float]] = {
        "evaluate": [], "verdict": [], "length": [], "entropy": []
    }  # fmt: skip
    path = latest_checkpoint([a.checkpoints for a in ctx.previous])
    if path is None:
        return 0, history
    state = load_checkpoint(path, trainer.model, trainer.optimizer, must_agree)
    trainer.engine.refresh()
    print(f"resumed at step {state['step']} from {path}", flush=True)
    return int(state["step"]), state["history"]


def _show(
    ctx: StageContext,
    step: int,
    steps: int,
    metrics: dict[str, float],
    history: dict[str, list[float]],
) -> None:
    evaluation = history["evaluate"][-1] if history["evaluate"] else float("nan")
    note = f"eval {evaluation:.2f}"
    if "acceptance/p05" in metrics:
        note = f"p5 {metrics['acceptance/p05']:.3f} " + note
        print(
            f"step {step + 1}/{steps} reward {metrics['reward/mean']:.3f} {note} "
            f"length {metrics['response/length_mean']:.1f} {metrics['time/step_s']:.2f} s",
            flush=True,
        )
    ctx.progress(min(step + 1, steps), steps, note)


def _save_final(target: Path, model: Any, tokenizer: Any) -> None:
    """Weights and tokenizer as a folder that any command takes as a model."""
    part = target.with_name(f".final.{os.getpid()}.part")
    save_model(part, model, tokenizer)
    shutil.rmtree(target, ignore_errors=True)
    os.rename(part, target)


def _result(ctx: StageContext, schedule: Schedule) -> dict[str, Any]:
    """Last value of every metric over all attempts, the peak of evaluation, and times."""
    events = read_events(ctx.folder)
    last: dict[str, float] = {}
    times: dict[str, float] = {}
    for _, _, _, metrics in events.rows:
        last.update({k: v for k, v in metrics.items() if not k.startswith("time/")})
        for key, value in metrics.items():
            if key.startswith("time/") and key != "time/step_s":
                name = key.removeprefix("time/")
                times[name] = times.get(name, 0.0) + value
    _, evaluations = events.series("evaluate/reward")
    if not evaluations:
        raise UserError("no evaluation was recorded", str(ctx.folder.path))
    last["evaluate/peak"] = max(evaluations)
    return {
        "metrics": last,
        "time": times,
        "schedule_digest": schedule.digest,
        "schedule_name": schedule.name,
    }
