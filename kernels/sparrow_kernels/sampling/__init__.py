"""A draw of one token from each row of logits, with the noise of its key."""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, pick_backend, require
from sparrow_kernels.sampling import naive
from sparrow_kernels.sampling.naive import Drawn, invert, tempered, uniform_noise

__all__ = ["Drawn", "draw_tokens", "invert", "tempered", "uniform_noise"]

OP = "draw_tokens"


def draw_tokens(
    logits_BV: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    sample_B: Tensor,
    position_B: Tensor,
    forced_B: Tensor,
    kept_BV: Tensor | None = None,
    backend: Backend | None = None,
) -> Drawn:
    """Draw a token of each row; the definition is `naive.draw_tokens`.

    The kernel keeps no table of the vocabulary's log-probabilities and sums in another order, so
    that a noise on the very edge between two tokens may fall to the other. It draws from the whole
    distribution alone: with `kept_BV` the definition runs. Nothing waits for the GPU.

    Raises:
        ValueError: shapes or dtypes that do not fit.
    """
    B = len(logits_BV)
    require(logits_BV.dim() == 2 and logits_BV.stride(1) == 1, OP, "logits must be [B, V] by rows")
    require(logits_BV.shape[1] > 0, OP, "the vocabulary is empty")
    for name, numbers in (("seed", seed_B), ("sample", sample_B), ("forced", forced_B)):
        fits = tuple(numbers.shape) == (B,) and numbers.dtype == torch.int64
        found = f"{tuple(numbers.shape)} of {numbers.dtype}"
        require(fits, OP, f"{name} must be [{B}] of int64, found {found}")
    fits = tuple(position_B.shape) == (B,) and position_B.dtype in (torch.int32, torch.int64)
    require(fits, OP, f"positions must be [{B}] of int32 or int64")
    fits = tuple(temperature_B.shape) == (B,) and temperature_B.is_floating_point()
    require(fits, OP, f"temperatures must be [{B}], floating")
    args = (logits_BV, temperature_B, seed_B, sample_B)
    if kept_BV is not None or pick_backend(logits_BV, backend) == "torch":
        return naive.draw_tokens(*args, position_B.long(), forced_B, kept_BV)
    from sparrow_kernels.sampling.triton import launch

    return launch(*args, position_B, forced_B)
