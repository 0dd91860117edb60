"""Kernels of sparse attention over full sequences: dense tiles under a mask of page bits.

Every tile below the diagonal is computed, since 128 neighbouring queries of a head rarely leave one
out together; a token's bits say what of it counts. Probabilities are powers of 2: scores are
scaled by log2(e), and so is the log-sum-exp.

Shape suffixes: L tokens of the stream, H query heads, K KV heads, W words, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.sparse_attention.configs import Config, TileConfig, within_a_word

LOWEST = tl.constexpr(-1.0e30)
"""Where a running maximum begins: finite, so that the difference of two is never NaN."""


@triton.jit
def _tile(x_ptr, rows, length, stride, D, BD: tl.constexpr):
    """[rows, BD] of one head; 0 beyond the sequence and beyond D."""
    at = tl.arange(0, BD)
    inside = (rows < length)[:, None] & (at < D)[None, :]
    return tl.load(x_ptr + rows.to(tl.int64)[:, None] * stride + at[None, :], inside, other=0.0)


@triton.jit
def _put(x_ptr, x, rows, length, stride, D, BD: tl.constexpr):
    at = tl.arange(0, BD)
    inside = (rows < length)[:, None] & (at < D)[None, :]
    where = x_ptr + rows.to(tl.int64)[:, None] * stride + at[None, :]
    tl.store(where, x.to(x_ptr.dtype.element_ty), inside)


@triton.jit
def _attend(
    top, total, out, q, k_ptr, v_ptr, word_ptr, rows, start, length, stride, L, D,
    page_bits, scale, BN: tl.constexpr, BD: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Let the keys of one tile enter the running maximum, sum and output of a tile of queries."""
    columns = start + tl.arange(0, BN)
    k = _tile(k_ptr, columns, length, stride, D, BD)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    word = tl.load(word_ptr + (start >> (page_bits + 5)) * L, rows < length, other=0)
    one = tl.full([BN], 1, tl.int32) << ((columns >> page_bits) & 31)
    seen = (word[:, None] & one[None, :]) != 0
    if DIAGONAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    s = tl.where(seen, s, -float("inf"))
    new = tl.maximum(top, tl.max(s, axis=1))
    p = tl.exp2(s - new[:, None])
    fade = tl.exp2(top - new)
    v = _tile(v_ptr, columns, length, stride, D, BD)
    out = tl.dot(p.to(v.dtype), v, out * fade[:, None], input_precision="ieee")
    return new, total * fade + tl.sum(p, axis=1), out


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, words_ptr, offsets_ptr,
    out_ptr,  # [L, H, D]
    lse_ptr,  # [H, L] float32
    L, H, W, D, page_bits, scale,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # the last tiles have most to do: they go first
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    h, n = tl.program_id(1).to(tl.int64), tl.program_id(2)
    L = tl.full([], 0, tl.int64) + L
    begin = tl.load(offsets_ptr + n)
    length = (tl.load(offsets_ptr + n + 1) - begin).to(tl.int32)
    if first >= length:
        return
    kv = h // GROUP
    rows = first + tl.arange(0, BM)
    q_stride, kv_stride = H * D, H // GROUP * D
    q_ptr += begin * q_stride + h * D
    k_ptr += begin * kv_stride + kv * D
    v_ptr += begin * kv_stride + kv * D
    word_ptr = words_ptr + kv * W * L + begin + rows
    q = _tile(q_ptr, rows, length, q_stride, D, BD)
    top, total = tl.full([BM], LOWEST, tl.float32), tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, BD], tl.float32)
    for start in range(0, first // BN * BN, BN):
        top, total, out = _attend(
            top, total, out, q, k_ptr, v_ptr, word_ptr, rows, start, length, kv_stride, L, D,
            page_bits, scale, BN, BD, False,
        )  # fmt: skip
    for start in range(first // BN * BN, tl.minimum(first + BM, length), BN):
        top, total, out = _attend(
            top, total, out, q, k_ptr, v_ptr, word_ptr, rows, start, length, kv_stride, L, D,
            page_bits, scale, BN, BD, True,
        )  # fmt: skip
    _put(out_ptr + begin * q_stride + h * D, out / total[:, None], rows, length, q_stride, D, BD)
    tl.store(lse_ptr + h * L + begin + rows, top + tl.log2(total), mask=rows < length)


@triton.jit
def _delta(
    out_ptr, do_ptr,  # [L, H, D]
    delta_ptr,  # [H, L] float32
    L, H, D,
    BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """What softmax's gradient takes off: the product of an output and its gradient."""
    h = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    out = _tile(out_ptr + h * D, rows, L, H * D, D, BD).to(tl.float32)
    do = _tile(do_ptr + h * D, rows, L, H * D, D, BD).to(tl.float32)
    tl.store(delta_ptr + h * L + rows, tl.sum(out * do, axis=1), mask=rows < L)


@triton.jit
def _of_keys(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, word_ptr, columns, one, start, length, stride,
    D, scale,
    BM: tl.constexpr, BD: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """What one tile of queries adds to the gradients of a tile of keys and values."""
    rows = start + tl.arange(0, BM)
    inside = rows < length
    q = _tile(q_ptr, rows, length, stride, D, BD)
    do = _tile(do_ptr, rows, length, stride, D, BD)
    # a row beyond the sequence has no bits, so it adds nothing
    word = tl.load(word_ptr + rows, inside, other=0)
    lse = tl.load(lse_ptr + rows, inside, other=0.0)
    delta = tl.load(delta_ptr + rows, inside, other=0.0)
    seen = (word[None, :] & one[:, None]) != 0
    if DIAGONAL:
        seen = seen & (columns[:, None] <= rows[None, :])
    s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
    p = tl.where(seen, tl.exp2(s - lse[None, :]), 0.0)
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
    dp = tl.dot(v, tl.trans(do), input_precision="ieee")
    ds = p * (dp - delta[None, :])
    return tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee"), dv


@triton.jit
def _backward_keys(
    q_ptr, k_ptr, v_ptr, words_ptr, offsets_ptr, do_ptr,
    lse_ptr, delta_ptr,  # [H, L] float32
    dk_ptr, dv_ptr,  # [L, K, D]
    L, H, W, D, page_bits, scale, factor,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    # the first tiles have most to do, and they go first
    first = tl.program_id(0) * BN
    kv, n = tl.program_id(1).to(tl.int64), tl.program_id(2)
    L = tl.full([], 0, tl.int64) + L
    begin = tl.load(offsets_ptr + n)
    length = (tl.load(offsets_ptr + n + 1) - begin).to(tl.int32)
    if first >= length:
        return
    columns = first + tl.arange(0, BN)
    q_stride, kv_stride = H * D, H // GROUP * D
    at = begin * kv_stride + kv * D
    k = _tile(k_ptr + at, columns, length, kv_stride, D, BD)
    v = _tile(v_ptr + at, columns, length, kv_stride, D, BD)
    word_ptr = words_ptr + (kv * W + (first >> (page_bits + 5))) * L + begin
    one = tl.full([BN], 1, tl.int32) << ((columns >> page_bits) & 31)
    dk, dv = tl.zeros([BN, BD], tl.float32), tl.zeros([BN, BD], tl.float32)
    # rows of tiles that the diagonal touches, then those below it
    middle = tl.minimum((first + BN + BM - 1) // BM * BM, (length + BM - 1) // BM * BM)
    for g in range(GROUP):
        h = kv * GROUP + g
        mine = begin * q_stride + h * D
        side = h * L + begin
        for start in range(first // BM * BM, middle, BM):
            dk, dv = _of_keys(
                dk, dv, k, v, q_ptr + mine, do_ptr + mine, lse_ptr + side, delta_ptr + side,
                word_ptr, columns, one, start, length, q_stride, D, scale, BM, BD, True,
            )  # fmt: skip
        for start in range(middle, length, BM):
            dk, dv = _of_keys(
                dk, dv, k, v, q_ptr + mine, do_ptr + mine, lse_ptr + side, delta_ptr + side,
                word_ptr, columns, one, start, length, q_stride, D, scale, BM, BD, False,
            )  # fmt: skip
    _put(dk_ptr + at, dk * factor, columns, length, kv_stride, D, BD)
    _put(dv_ptr + at, dv, columns, length, kv_stride, D, BD)


@triton.jit
def _of_queries(
    dq, q, do, lse, delta, k_ptr, v_ptr, word_ptr, rows, start, length, stride, L, D,
    page_bits, scale, BN: tl.constexpr, BD: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """What one tile of keys adds to the gradient of a tile of queries."""
    columns = start + tl.arange(0, BN)
    k = _tile(k_ptr, columns, length, stride, D, BD)
    v = _tile(v_ptr, columns, length, stride, D, BD)
    word = tl.load(word_ptr + (start >> (page_bits + 5)) * L, rows < length, other=0)
    one = tl.full([BN], 1, tl.int32) << ((columns >> page_bits) & 31)
    seen = (word[:, None] & one[None, :]) != 0
    if DIAGONAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    p = tl.where(seen, tl.exp2(s - lse[:, None]), 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit
def _backward_queries(
    q_ptr, k_ptr, v_ptr, words_ptr, offsets_ptr, do_ptr,
    lse_ptr, delta_ptr,  # [H, L] float32
    dq_ptr,  # [L, H, D]
    L, H, W, D, page_bits, scale, factor,
    GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * BM
    h, n = tl.program_id(1).to(tl.int64), tl.program_id(2)
    L = tl.full([], 0, tl.int64) + L
    begin = tl.load(offsets_ptr + n)
    length = (tl.load(offsets_ptr + n + 1) - begin).to(tl.int32)
    if first >= length:
        return
    kv = h // GROUP
    rows = first + tl.arange(0, BM)
    inside = rows < length
    q_stride, kv_stride = H * D, H // GROUP * D
    at = begin * q_stride + h * D
    k_ptr += begin * kv_stride + kv * D
    v_ptr += begin * kv_stride + kv * D
    word_ptr = words_ptr + kv * W * L + begin + rows
    q = _tile(q_ptr + at, rows, length, q_stride, D, BD)
    do = _tile(do_ptr + at, rows, length, q_stride, D, BD)
    lse = tl.load(lse_ptr + h * L + begin + rows, inside, other=0.0)
    delta = tl.load(delta_ptr + h * L + begin + rows, inside, other=0.0)
    dq = tl.zeros([BM, BD], tl.float32)
    for start in range(0, first // BN * BN, BN):
        dq = _of_queries(
            dq, q, do, lse, delta, k_ptr, v_ptr, word_ptr, rows, start, length, kv_stride, L, D,
            page_bits, scale, BN, BD, False,
        )  # fmt: skip
    for start in range(first // BN * BN, tl.minimum(first + BM, length), BN):
        dq = _of_queries(
            dq, q, do, lse, delta, k_ptr, v_ptr, word_ptr, rows, start, length, kv_stride, L, D,
            page_bits, scale, BN, BD, True,
        )  # fmt: skip
    _put(dq_ptr + at, dq * factor, rows, length, q_stride, D, BD)


class _Launch:
    """Arguments that all kernels share, made once a call."""

    def __init__(
        self, q: Tensor, k: Tensor, words: Tensor, offsets: Sequence[int], page_size: int
    ) -> None:
        L, H, D = q.shape
        self.sequences = len(offsets) - 1
        self.longest = max(b - a for a, b in pairwise(offsets))
        self.heads, self.kv_heads = H, k.shape[1]
        self.offsets = torch.tensor(offsets, dtype=torch.int64).to(q.device, non_blocking=True)
        # a page size is a power of 2
        self.sizes = (L, H, words.shape[1], D, page_size.bit_length() - 1)
        self.wide = max(triton.next_power_of_2(D), 16)

    def grid(self, tile: int, heads: int) -> tuple[int, int, int]:
        return triton.cdiv(self.longest, tile), heads, self.sequences

    def options(self, tile: TileConfig) -> dict[str, int]:
        return {
            "GROUP": self.heads // self.kv_heads,
            "BM": tile.queries,
            "BN": tile.keys,
            "BD": self.wide,
            "num_warps": tile.warps,
            "num_stages": tile.stages,
        }


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    words: Tensor,
    offsets: Sequence[int],
    page_size: int,
    scale: float,
    config: Config,
) -> tuple[Tensor, Tensor]:
    """Outputs [L, H, D] and log-sum-exps [H, L], to the base of 2."""
    launch = _Launch(q, k, words, offsets, page_size)
    out = torch.empty_like(q)
    lse_HL = torch.empty((q.shape[1], len(q)), dtype=torch.float32, device=q.device)
    tile = within_a_word(config.forward, page_size)
    _forward[launch.grid(tile.queries, launch.heads)](
        q, k, v, words, launch.offsets, out, lse_HL, *launch.sizes, scale * math.log2(math.e),
        **launch.options(tile),
    )  # fmt: skip
    return out, lse_HL


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    words: Tensor,
    offsets: Sequence[int],
    page_size: int,
    scale: float,
    config: Config,
    out: Tensor,
    lse_HL: Tensor,
    grad: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in their dtypes."""
    launch = _Launch(q, k, words, offsets, page_size)
    L, H, D = q.shape
    delta_HL = torch.empty_like(lse_HL)
    _delta[(triton.cdiv(L, 64), H)](out, grad, delta_HL, L, H, D, BM=64, BD=launch.wide)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    given = (q, k, v, words, launch.offsets, grad, lse_HL, delta_HL)
    scales = (scale * math.log2(math.e), scale)
    tile = within_a_word(config.of_keys, page_size)
    _backward_keys[launch.grid(tile.keys, launch.kv_heads)](
        *given, dk, dv, *launch.sizes, *scales, **launch.options(tile)
    )
    tile = within_a_word(config.of_queries, page_size)
    _backward_queries[launch.grid(tile.queries, launch.heads)](
        *given, dq, *launch.sizes, *scales, **launch.options(tile)
    )
    return dq, dk, dv
