"""A draw as two kernels: the maximum and the sum of every block of the vocabulary, then the token.

The logits are read once and a block of them once more. Weights are exponentials in float32, summed
in float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.sampling.naive import FIRST, GOLDEN, SECOND, Drawn

BLOCK = 2048

_golden = tl.constexpr(GOLDEN)
_first = tl.constexpr(FIRST)
_second = tl.constexpr(SECOND)


@triton.jit
def _blocks(logits, temperature, top, total, place, stride_b, V, N, BLOCK: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1)
    v = n * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(temperature + b).to(tl.float32)
    x = tl.load(logits + b * stride_b + v, mask=v < V, other=-float("inf")).to(tl.float32)
    x = x / tl.where(t == 0, 1.0, t)
    highest = tl.max(x, 0)
    # a block of -inf alone has no weight
    low = tl.where(highest == -float("inf"), 0.0, highest)
    weights = tl.where(v < V, tl.exp(x - low), 0.0)
    tl.store(top + b * N + n, highest)
    tl.store(total + b * N + n, tl.sum(weights.to(tl.float64), 0))
    tl.store(place + b * N + n, tl.min(tl.where(x == highest, v, V), 0))


@triton.jit
def _mix(x):
    x = (x ^ (x >> 30)) * _first
    x = (x ^ (x >> 27)) * _second
    return x ^ (x >> 31)


@triton.jit
def _beyond(weights, target, SIZE: tl.constexpr):
    """The first place at which the running sum passes the target, at most the last that counts;
    and the sum before it.
    """
    i = tl.arange(0, SIZE)
    sums = tl.cumsum(weights, 0)
    last = tl.max(tl.where(weights > 0, i, 0), 0)
    found = tl.minimum(tl.sum((sums <= target).to(tl.int32), 0), last)
    return found, tl.sum(tl.where(i < found, weights, 0.0), 0)


@triton.jit
def _pick(
    logits, temperature, seeds, samples, positions, forced,
    top, total, place, tokens, logp, raw, stride_b, V, N,
    BLOCK: tl.constexpr, NP: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, NP)
    top_N = tl.load(top + b * N + n, mask=n < N, other=-float("inf"))
    sum_N = tl.load(total + b * N + n, mask=n < N, other=0.0)
    highest = tl.max(top_N, 0)
    weight_N = sum_N * tl.exp(top_N - highest).to(tl.float64)
    whole = tl.sum(weight_N, 0)
    state = _mix(tl.load(seeds + b).to(tl.uint64) + _golden)
    state = _mix((state ^ tl.load(samples + b).to(tl.uint64)) + _golden)
    state = _mix((state ^ tl.load(positions + b).to(tl.uint64)) + _golden)
    noise = (state >> 11).to(tl.float64) * 1.1102230246251565e-16
    t = tl.load(temperature + b).to(tl.float32)
    at = tl.where(t == 0, 1.0, t)
    block, before = _beyond(weight_N, noise * whole, NP)
    v = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + b * stride_b + v, mask=v < V, other=-float("inf")).to(tl.float32)
    weights = tl.where(v < V, tl.exp(x / at - highest), 0.0).to(tl.float64)
    rest = tl.maximum(noise * whole - before, 0.0)
    inside, _ = _beyond(weights, rest, BLOCK)
    token = (block * BLOCK + inside).to(tl.int64)
    greedy = tl.min(tl.where(top_N == highest, tl.load(place + b * N + n, mask=n < N, other=V), V))
    token = tl.where(t == 0, greedy.to(tl.int64), token)
    given = tl.load(forced + b)
    token = tl.where(given >= 0, given, token)
    chosen = tl.load(logits + b * stride_b + token).to(tl.float32) / at
    told = chosen - highest - tl.log(whole).to(tl.float32)
    tl.store(tokens + b, token)
    tl.store(raw + b, told)
    tl.store(logp + b, tl.where((t == 0) & (given < 0), 0.0, told))


def launch(
    logits_BV: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    sample_B: Tensor,
    position_B: Tensor,
    forced_B: Tensor,
) -> Drawn:
    """Run the kernels; arguments are checked by the caller."""
    B, V = logits_BV.shape
    N = triton.cdiv(V, BLOCK)
    device = logits_BV.device
    top, total = (
        torch.empty((B, N), dtype=kind, device=device) for kind in (torch.float32, torch.float64)
    )
    place = torch.empty((B, N), dtype=torch.int32, device=device)
    tokens = torch.empty(B, dtype=torch.int64, device=device)
    logp, raw = (torch.empty(B, dtype=torch.float32, device=device) for _ in range(2))
    if not B:
        return Drawn(tokens, logp, raw)
    stride = logits_BV.stride(0)
    _blocks[(B, N)](
        logits_BV, temperature_B, top, total, place, stride, V, N, BLOCK=BLOCK, num_warps=4
    )
    _pick[(B,)](
        logits_BV, temperature_B, seed_B, sample_B, position_B, forced_B,
        top, total, place, tokens, logp, raw, stride, V, N,
        BLOCK=BLOCK, NP=triton.next_power_of_2(N), num_warps=4,
    )  # fmt: skip
    return Drawn(tokens, logp, raw)
