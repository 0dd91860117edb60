"""Estimates of an RL step and of a whole stage, for the preview of a sweep. Estimates only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparrow_analysis.cost.hardware import Hardware
from sparrow_analysis.cost.shape import ModelShape
from sparrow_analysis.cost.step import forward_cost
from sparrow_analysis.cost.trajectory import rollout_seconds
from sparrow_lab.config.schema import Budget, PointConfig
from sparrow_lab.sparsity.schedule import Schedule

BYTES = {"bfloat16": 2, "float32": 4, "float64": 8}
BACKWARD = 2.0
"""A backward pass costs about two forward passes."""


@dataclass(frozen=True)
class RunEstimate:
    """Seconds by phase on one device: an estimate of the order, not a promise."""

    rollout: float = 0.0
    recompute: float = 0.0
    train: float = 0.0
    evaluate: float = 0.0

    @property
    def seconds(self) -> float:
        """All phases together."""
        return self.rollout + self.recompute + self.train + self.evaluate

    def __add__(self, other: RunEstimate) -> RunEstimate:
        return RunEstimate(
            self.rollout + other.rollout,
            self.recompute + other.recompute,
            self.train + other.train,
            self.evaluate + other.evaluate,
        )

    def __mul__(self, factor: float) -> RunEstimate:
        return RunEstimate(
            self.rollout * factor,
            self.recompute * factor,
            self.train * factor,
            self.evaluate * factor,
        )


def rl_step(
    shape: ModelShape,
    hardware: Hardware,
    prompt: int,
    tokens: int,
    schedule: Schedule | None = None,
    *,
    sequences: int,
    batch: int,
    samples: int = 1,
    epochs: int = 1,
    on_policy: bool = False,
    element_bytes: float = 2,
    checkpointing: bool = False,
) -> RunEstimate:
    """One GRPO step: rollout, dense recompute of log-probs, update.

    Args:
        sequences: prompts x samples.
        samples: samples that share a prompt: it is prefilled, and runs through the trainer, once.
        epochs: passes over them.
        on_policy: there is one update a step, whose own forward pass gives the dense log-probs.
        checkpointing: activations are computed again in the backward pass.
    """
    rollout = rollout_seconds(
        shape,
        hardware,
        prompt,
        tokens,
        schedule,
        sequences=sequences,
        batch=batch,
        samples=samples,
        element_bytes=element_bytes,
    )
    once = _forward_seconds(shape, hardware, prompt, tokens, samples, element_bytes) * sequences
    passes = 1 + BACKWARD + (1 if checkpointing else 0)
    recompute = 0.0 if on_policy else once
    return RunEstimate(rollout=rollout, recompute=recompute, train=once * passes * epochs)


def _forward_seconds(
    shape: ModelShape,
    hardware: Hardware,
    prompt: int,
    tokens: int,
    samples: int,
    element_bytes: float,
) -> float:
    """Seconds of a dense forward of one sequence whose prompt is shared by `samples`."""
    sizes: dict[str, Any] = {"heads_at_all": True, "element_bytes": element_bytes}
    full = float(forward_cost(shape, prompt + tokens, **sizes).roofline(hardware))
    shared = float(forward_cost(shape, prompt, **sizes).roofline(hardware))
    return full - shared + shared / samples


def estimate_parts(
    shape: ModelShape,
    hardware: Hardware,
    config: PointConfig,
    stage: str = "train",
    *,
    prompt: int = 128,
    tokens: int | None = None,
    schedule: Schedule | None = None,
) -> RunEstimate:
    """Seconds of one stage of a point.

    Args:
        prompt: tokens of a prompt.
        tokens: mean tokens of an answer; None takes the task's cap, and 256 if that is unset.
        schedule: the schedule if it is known. Without it a fixed budget is taken from the config,
            and whatever else (a tau that is still to be calibrated, say) counts as dense: an upper
            bound.

    Raises:
        ValueError: an unknown stage.
        UserError: a budget that makes no schedule.
    """
    tokens = tokens if tokens is not None else config.task.max_new_tokens or 256
    schedule = schedule or _planned(config)
    size = BYTES[config.model.dtype]
    slots = config.rollout.max_batch

    def generate(sequences: int, under: Schedule | None, samples: int = 1) -> float:
        return rollout_seconds(
            shape,
            hardware,
            prompt,
            tokens,
            under,
            sequences=sequences,
            batch=slots,
            samples=samples,
            element_bytes=size,
        )

    def recompute(sequences: int, samples: int) -> float:
        return _forward_seconds(shape, hardware, prompt, tokens, samples, size) * sequences

    samples = config.calibrate.samples
    measured = config.calibrate.prompts * samples
    if stage == "calibrate":
        budgets = len(config.calibrate.budgets) or config.calibrate.ladder
        kinds = config.calibrate.trajectories
        # each budget on each kind of trajectory, and the dense rollout; only own texts need a
        # recompute of their own
        return RunEstimate(
            rollout=(len(kinds) * budgets + 1) * generate(measured, None, samples),
            recompute=(budgets * ("own" in kinds) + 1) * recompute(measured, samples),
        )
    if stage == "schedule":
        return RunEstimate(
            rollout=generate(measured, schedule, samples), recompute=recompute(measured, samples)
        )
    if stage == "evaluate":
        return RunEstimate(evaluate=generate(config.train.evaluate_prompts, None))
    if stage != "train":
        raise ValueError(f"no such stage: {stage}")
    train = config.train
    step = rl_step(
        shape,
        hardware,
        prompt,
        tokens,
        schedule,
        sequences=train.prompts * train.samples,
        batch=slots,
        samples=train.samples,
        epochs=train.epochs,
        on_policy=train.epochs == train.minibatches == 1,
        element_bytes=size,
    )
    evaluations = train.steps // train.evaluate_every + 1
    return step * train.steps + RunEstimate(
        evaluate=evaluations * generate(train.evaluate_prompts, None)
    )


def estimate_run(
    shape: ModelShape,
    hardware: Hardware,
    config: PointConfig,
    stage: str = "train",
    *,
    prompt: int = 128,
    tokens: int | None = None,
    schedule: Schedule | None = None,
) -> float:
    """Seconds of one stage of a point on one device; see `estimate_parts`. An estimate."""
    return estimate_parts(
        shape, hardware, config, stage, prompt=prompt, tokens=tokens, schedule=schedule
    ).seconds


def _planned(config: PointConfig) -> Schedule | None:
    """The schedule that a config states outright; None (dense) if it is still to be made."""
    sparsity = config.sparsity
    if isinstance(sparsity.schedule, Budget):
        # rounded up to whole pages, as the stage that makes the schedule does
        return Schedule.fixed(
            -(-sparsity.schedule.budget // sparsity.page_size) * sparsity.page_size,
            sparsity.page_size,
            landmark=sparsity.landmark,
            score=sparsity.score,
            dense_layers=sparsity.dense_layers,
            reserved=sparsity.reserved,
        )
    return None
