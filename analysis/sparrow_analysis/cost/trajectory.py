"""Cost and time of a whole trajectory under a schedule, and how many fit into memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparrow_analysis.cost.hardware import Hardware
from sparrow_analysis.cost.shape import ModelShape
from sparrow_analysis.cost.step import Cost, Floats, StepCost, decode_step_cost, forward_cost
from sparrow_lab.sparsity.schedule import Schedule


@dataclass(frozen=True)
class TrajectoryCost:
    """Work of one sequence: its prefill and all its decode steps.

    Attributes:
        steps: decode steps; the first generated token comes from the prefill and has none.
        attended_mean: mean tokens of KV attended to in a sparse layer a step; NaN without steps.
    """

    prefill: Cost
    decode: StepCost
    steps: int
    attended_mean: float

    @property
    def total(self) -> Cost:
        return self.prefill + self.decode.total

    def eflops(self, intensity: float) -> float:
        """Equivalent FLOPs of prefill and decode together."""
        return float(self.total.eflops(intensity))


def decode_lengths(prompt: int, tokens: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Lengths of the decode steps that generate `tokens` tokens after a prompt.

    The first token is sampled from the prefill, so there are `tokens - 1` steps, and the first
    runs at length prompt + 1. No token at all: no step.
    """
    if prompt < 0 or tokens < 0:
        raise ValueError(f"prompt and tokens must be 0 or more, not {prompt} and {tokens}")
    return np.arange(prompt + 1, prompt + max(tokens, 1), dtype=np.int64)


def scheduled_step_cost(
    shape: ModelShape,
    length: Any,
    schedule: Schedule | None,
    batch: int = 1,
    *,
    element_bytes: float = 2,
    read_weights: bool = True,
) -> StepCost:
    """`decode_step_cost` with budget, page size and layers of a schedule; None is dense."""
    common: dict[str, Any] = {"element_bytes": element_bytes, "read_weights": read_weights}
    if schedule is None or schedule.is_dense:
        return decode_step_cost(shape, length, batch, None, **common)
    return decode_step_cost(
        shape,
        length,
        batch,
        schedule.budgets_for(length),
        schedule.page_size,
        schedule.dense_layers,
        score=schedule.score,
        landmark=schedule.landmark,
        **common,
    )


def trajectory_cost(
    shape: ModelShape,
    prompt: int,
    tokens: int,
    schedule: Schedule | None = None,
    batch: int = 1,
    *,
    element_bytes: float = 2,
    read_weights: bool = True,
) -> TrajectoryCost:
    """Work of one sequence of a batch: `prompt` tokens in, `tokens` generated."""
    lengths = decode_lengths(prompt, tokens)
    steps = scheduled_step_cost(
        shape,
        lengths,
        schedule,
        batch,
        element_bytes=element_bytes,
        read_weights=read_weights,
    )
    attended = lengths if schedule is None else schedule.attended_for(lengths)
    return TrajectoryCost(
        prefill=forward_cost(shape, prompt, element_bytes=element_bytes),
        decode=steps.sum(),
        steps=len(lengths),
        attended_mean=float(attended.mean()) if len(lengths) else float("nan"),
    )


def step_seconds(cost: StepCost, shape: ModelShape, hardware: Hardware, batch: int) -> Floats:
    """Seconds of one decode step of a whole batch.

    Linear parts, attention and page choice run one after the other, each at its own roofline; the
    layers' overhead comes on top. `cost` is one sequence's, as everywhere.
    """
    parts = (cost.linear, cost.attention, cost.scoring)
    worked = sum((p * batch).roofline(hardware) for p in parts)
    return np.asarray(worked + shape.layers * hardware.layer_overhead)


def rollout_seconds(
    shape: ModelShape,
    hardware: Hardware,
    prompt: int,
    tokens: int,
    schedule: Schedule | None = None,
    *,
    sequences: int = 1,
    batch: int = 1,
    samples: int = 1,
    element_bytes: float = 2,
) -> float:
    """Seconds to generate `sequences` equal sequences, at most `batch` at once.

    `samples` sequences share a prompt, which is prefilled once. The batch is taken as full
    throughout: real lengths differ, and stragglers make it longer.
    """
    if sequences == 0:
        return 0.0
    batch = min(batch, sequences)
    lengths = decode_lengths(prompt, tokens)
    cost = scheduled_step_cost(shape, lengths, schedule, batch, element_bytes=element_bytes)
    decode = float(step_seconds(cost, shape, hardware, batch).sum()) * sequences / batch
    prefill = forward_cost(shape, prompt, element_bytes=element_bytes).roofline(hardware)
    return decode + float(prefill) * sequences / samples


def largest_batch(
    shape: ModelShape, hardware: Hardware, length: int, *, element_bytes: float = 2
) -> int:
    """Sequences of `length` whose cache fits beside the weights; 0 if the weights alone do not.

    Sparsity changes what is read, not what is kept, so this is the same for every schedule.
    """
    free = hardware.memory - element_bytes * shape.parameters
    return max(0, int(free // (shape.kv_bytes_per_token(element_bytes) * max(length, 1))))
