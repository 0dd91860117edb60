"""FLOPs and bytes of one decode step and of a prefill, by part, for one sequence.

`length` is prompt + generated with the current token, a number or an array: every figure then has
its shape. Kernels' own overheads are not here (see `time.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparrow_analysis.cost.hardware import Hardware
from sparrow_analysis.cost.shape import ModelShape

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Cost:
    """Work of one part: FLOPs, and bytes moved between memory and chip. Same shapes."""

    flops: Floats
    bytes: Floats

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)

    def __mul__(self, factor: float) -> Cost:
        return Cost(self.flops * factor, self.bytes * factor)

    def sum(self) -> Cost:
        """Added up over all lengths; zero if there are none."""
        return Cost(np.asarray(self.flops.sum()), np.asarray(self.bytes.sum()))

    def eflops(self, intensity: float) -> Floats:
        """Kinetics' equivalent FLOPs: FLOPs + intensity * bytes. Ranks; does not predict time."""
        return self.flops + intensity * self.bytes

    def roofline(self, hardware: Hardware) -> Floats:
        """Seconds at the attainable rates: the slower of compute and memory."""
        compute = self.flops / (hardware.flops * hardware.flops_share)
        memory = self.bytes / (hardware.bandwidth * hardware.bandwidth_share)
        return np.maximum(compute, memory)


@dataclass(frozen=True)
class StepCost:
    """One decode step of one sequence of a batch.

    Attributes:
        linear: all matrix products with weights, output head included; weights are read once
            for the whole batch, so a sequence bears its share.
        attention: keys and values attended to, over all layers.
        scoring: query against the landmarks of all pages; zero where nothing is chosen.
    """

    linear: Cost
    attention: Cost
    scoring: Cost

    @property
    def total(self) -> Cost:
        return self.linear + self.attention + self.scoring

    def sum(self) -> StepCost:
        """Added up over all lengths."""
        return StepCost(self.linear.sum(), self.attention.sum(), self.scoring.sum())


def decode_step_cost(
    shape: ModelShape,
    length: npt.ArrayLike,
    batch: int = 1,
    budget: npt.ArrayLike | None = None,
    page_size: int = 16,
    dense_layers: int = 2,
    *,
    score: Literal["group_mean", "softmax_max"] = "group_mean",
    landmark: Literal["mean", "minmax"] = "mean",
    element_bytes: float = 2,
    read_weights: bool = True,
) -> StepCost:
    """Cost of generating one token at `length`.

    Args:
        batch: sequences decoded together; only the share of the weight bytes depends on it.
        budget: tokens attended to in sparse layers (number, or array like `length`); None is dense.
        dense_layers: the first layers, which attend to everything. So do layers with a window,
            within it.
        score: `group_mean` scores once a KV head, `softmax_max` once a query head.
        landmark: `minmax` keeps, reads and multiplies two vectors a page.
        read_weights: False leaves weight bytes out, as Kinetics does for large batches.
    """
    at = np.asarray(length, dtype=np.float64)
    allowed = at if budget is None else np.broadcast_to(np.asarray(budget, np.float64), at.shape)
    head = shape.head_dim * element_bytes
    attended, scored = np.zeros_like(at), np.zeros_like(at)
    for layer, window in enumerate(shape.windows):
        if window is not None:
            attended += np.minimum(at, window)
        elif layer < dense_layers:
            attended += at
        else:
            attended += np.minimum(at, allowed)
            scored += np.where(allowed < at, at / page_size, 0.0)
    vectors = 2 if landmark == "minmax" else 1
    queries = shape.kv_heads if score == "group_mean" else shape.heads
    weights = shape.body_parameters + shape.head_parameters
    one = np.ones_like(at)
    return StepCost(
        linear=Cost(
            2.0 * weights * one, (element_bytes * weights / batch if read_weights else 0.0) * one
        ),
        attention=Cost(
            4.0 * shape.heads * shape.head_dim * attended, 2.0 * shape.kv_heads * head * attended
        ),
        scoring=Cost(
            2.0 * vectors * queries * shape.head_dim * scored,
            vectors * shape.kv_heads * head * scored,
        ),
    )


def forward_cost(
    shape: ModelShape,
    tokens: npt.ArrayLike,
    *,
    heads_at_all: bool = False,
    element_bytes: float = 2,
) -> Cost:
    """Cost of one dense causal forward over `tokens` tokens: a prefill, or a recompute.

    Args:
        heads_at_all: logits at every position (recompute) instead of the last one (prefill).

    Bytes are one read of the weights and one write of keys and values; activations stay out.
    """
    n = np.asarray(tokens, dtype=np.float64)
    pairs = np.zeros_like(n)
    for window in shape.windows:
        short = n if window is None else np.minimum(n, window)
        pairs += short * (short + 1) / 2 + (n - short) * short
    logits = n if heads_at_all else np.minimum(n, 1)
    flops = 2.0 * shape.body_parameters * n + 2.0 * shape.head_parameters * logits
    flops = flops + 4.0 * shape.heads * shape.head_dim * pairs
    weights = element_bytes * (shape.body_parameters + shape.head_parameters)
    moved = np.where(n > 0, weights, 0.0) + shape.kv_bytes_per_token(element_bytes) * n
    return Cost(np.asarray(flops), np.asarray(moved))


def speedup(dense: npt.ArrayLike, sparse: npt.ArrayLike) -> Floats:
    """dense / sparse; NaN where sparse is zero, as for a trajectory without steps."""
    top, bottom = np.broadcast_arrays(np.asarray(dense, np.float64), np.asarray(sparse, np.float64))
    ratio: Floats = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=ratio, where=bottom > 0)
    return ratio
