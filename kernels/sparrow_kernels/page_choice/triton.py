"""Page choice as two kernels: scores of all landmarks, then the best of each row.

A *row* is one KV head of one sequence. The first kernel reads every landmark once and writes a
score in float32. The second takes one row: it finds the score of the last page to keep by halving
the range of floats bit by bit, counting; pages above it are kept, and of those equal to it the
first ones. No sort, no atomics: the same input gives the same pages. Sequences that keep all their
pages are not scored.

Shape suffixes: H heads of a tile, G query heads of a KV head, P pages, D head dim.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.dispatch import device_name, settings, wide_dots
from sparrow_kernels.page_choice.naive import Score

LOG2E = 1.4426950408889634


@triton.jit
def _kept(lengths, keep, b, S: tl.constexpr, first, last, width):
    """Pages of a sequence, and how many of them it keeps."""
    count = tl.cdiv(tl.load(lengths + b).to(tl.int32), S)
    kept = tl.maximum(tl.load(keep + b).to(tl.int32), first + last)
    return count, tl.minimum(tl.minimum(kept, width), count)


@triton.jit(do_not_specialize=["P", "width"])
def _score_mean(
    q, marks, table, lengths, keep, scores,
    stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
    K, P, first, last, width,
    BOUNDS: tl.constexpr, G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, S: tl.constexpr,
    HEADS: tl.constexpr, PAGES: tl.constexpr, SPAN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Scores of the group's mean query, for HEADS KV heads at once."""
    groups = tl.cdiv(K, HEADS)
    b = (tl.program_id(0) // groups).to(tl.int64)
    h_H = (tl.program_id(0) % groups) * HEADS + tl.arange(0, HEADS)
    count, kept = _kept(lengths, keep, b, S, first, last, width)
    lo = tl.program_id(1) * SPAN
    hi = tl.minimum(lo + SPAN, count - last)
    if (kept >= count) | (lo >= hi):
        return
    d = tl.arange(0, DP)
    held_HD = (h_H < K)[:, None] & (d < D)[None, :]
    q_HD = tl.zeros([HEADS, DP], tl.float32)
    for g in tl.static_range(G):
        at = q + b * stride_qb + h_H[:, None] * stride_qk + g * stride_qg + d[None, :]
        q_HD += tl.load(at, mask=held_HD, other=0.0).to(tl.float32)
    q_1HD = (q_HD / G)[None, :, :]
    table += b * stride_tb
    p = tl.arange(0, PAGES)
    n_P = tl.load(table + tl.minimum(lo + p, hi - 1)).to(tl.int64)
    for begin in tl.range(lo, hi, PAGES, num_stages=STAGES):
        at_PHD = n_P[:, None, None] * stride_mn + (h_H.to(tl.int64) * stride_mh)[None, :, None]
        at_PHD = marks + (at_PHD + d[None, None, :])
        held = (begin + p < hi)[:, None, None] & held_HD[None, :, :]
        low_PHD = tl.load(at_PHD, mask=held, other=0.0).to(tl.float32)
        n_P = tl.load(table + tl.minimum(begin + PAGES + p, hi - 1)).to(tl.int64)
        if BOUNDS:
            high_PHD = tl.load(at_PHD + D, mask=held, other=0.0).to(tl.float32)
            product_PHD = tl.maximum(low_PHD * q_1HD, high_PHD * q_1HD)
        else:
            product_PHD = low_PHD * q_1HD
        out = scores + (b * K + h_H)[None, :] * P + (begin + p)[:, None]
        mask = (begin + p < hi)[:, None] & (h_H < K)[None, :]
        tl.store(out, tl.sum(product_PHD, 2), mask=mask)


@triton.jit(do_not_specialize=["P", "width"])
def _score_heads(
    q, marks, table, lengths, keep, scores,
    stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
    K, P, first, last, width, scale_log2,
    BOUNDS: tl.constexpr, WIDE: tl.constexpr,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, S: tl.constexpr,
    PAGES: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Scores of every query head, scaled as logits of base 2."""
    row = tl.program_id(0)
    b = (row // K).to(tl.int64)
    h = (row % K).to(tl.int64)
    count, kept = _kept(lengths, keep, b, S, first, last, width)
    lo = tl.program_id(1) * SPAN
    hi = tl.minimum(lo + SPAN, count - last)
    if (kept >= count) | (lo >= hi):
        return
    d = tl.arange(0, DP)
    g = tl.arange(0, GP)
    at = q + b * stride_qb + h * stride_qk + g[:, None] * stride_qg + d[None, :]
    q_GD = tl.load(at, mask=(g < G)[:, None] & (d < D)[None, :], other=0.0)
    if WIDE:
        q_GD = q_GD.to(tl.float32)
    table += b * stride_tb
    marks += h * stride_mh
    p = tl.arange(0, PAGES)
    for begin in range(lo, hi, PAGES):
        seen = begin + p < hi
        n_P = tl.load(table + begin + p, mask=seen, other=0).to(tl.int64)
        at_PD = marks + (n_P[:, None] * stride_mn + d[None, :])
        held = seen[:, None] & (d < D)[None, :]
        low_PD = tl.load(at_PD, mask=held, other=0.0)
        if WIDE:
            low_PD = low_PD.to(tl.float32)
        if BOUNDS:
            high_PD = tl.load(at_PD + D, mask=held, other=0.0)
            if WIDE:
                high_PD = high_PD.to(tl.float32)
            below = tl.where(q_GD < 0, q_GD, 0.0).to(q_GD.dtype)
            above = tl.where(q_GD > 0, q_GD, 0.0).to(q_GD.dtype)
            s_GP = tl.dot(below, tl.trans(low_PD), input_precision="ieee")
            s_GP += tl.dot(above, tl.trans(high_PD), input_precision="ieee")
        else:
            s_GP = tl.dot(q_GD, tl.trans(low_PD), input_precision="ieee")
        out = scores + (row.to(tl.int64) * G + g[:, None]) * P + (begin + p)[None, :]
        tl.store(out, s_GP * scale_log2, mask=(g < G)[:, None] & seen[None, :])


@triton.jit(do_not_specialize=["P", "width"])
def _select(
    scores, lengths, keep, pages, K, P, first, last, width,
    HEADS: tl.constexpr, S: tl.constexpr, PAGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The pages that one row keeps. HEADS > 1: scores are logits of so many query heads."""
    row = tl.program_id(0).to(tl.int64)
    b = row // K
    count, kept = _kept(lengths, keep, b, S, first, last, width)
    p = tl.arange(0, PAGES)
    # who keeps all pages has none to choose among
    end = tl.where(kept < count, count - last, 0)
    free = (p >= first) & (p < end)
    s_P = tl.full([PAGES], -float("inf"), tl.float32)
    for g in tl.static_range(HEADS):
        at = scores + (row * HEADS + g) * P + p
        z_P = tl.load(at, mask=free, other=-float("inf"))
        if HEADS > 1:
            top = tl.max(z_P, 0)
            top = tl.where(top == -float("inf"), 0.0, top)
            z_P -= top + tl.log2(tl.maximum(tl.sum(tl.exp2(z_P - top), 0), 1e-30))
        s_P = tl.maximum(s_P, z_P, propagate_nan=tl.PropagateNan.ALL)
    # whole numbers in the order of the floats; 0 for what cannot be chosen. -0 counts as 0.
    bits = tl.where(s_P == 0, 0.0, s_P).to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF) ^ -2147483648
    key = tl.where(free, bits, 0).to(tl.uint32, bitcast=True)
    need = kept - first - last
    least = tl.zeros([], tl.uint32)
    bit = tl.full([], 31, tl.int32)
    while bit >= 0:
        trial = least | (tl.full([], 1, tl.uint32) << bit.to(tl.uint32))
        reach = tl.sum((key >= trial).to(tl.int32), 0)
        least = tl.where(reach >= need, trial, least)
        # as many as needed: there is nothing to halve any more
        bit = tl.where(reach == need, -1, bit - 1)
    over = key > least
    even = (key == least) & free
    room = need - tl.sum(over.to(tl.int32), 0)
    chosen = (over | (even & (tl.cumsum(even.to(tl.int32), 0) <= room))) & free
    chosen = (chosen | (p < first) | (p >= end)) & (p < count)
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    pages += row * width
    tl.store(pages + place, p, mask=chosen & (place < width))
    w = tl.arange(0, WIDTH)
    tl.store(pages + w, tl.zeros([WIDTH], tl.int32) + P, mask=(w >= kept) & (w < width))


def launch(
    q_BKGD: Tensor,
    marks_NKRD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    page_size: int,
    first: int,
    last: int,
    width: int,
    score: Score,
    tile: dict[str, Any] | None = None,
) -> Tensor:
    """Run the kernels; arguments are checked by the caller.

    Args:
        tile: launch settings instead of the tuned ones.

    Returns:
        [B, K, W] in int32.
    """
    B, K, G, D = q_BKGD.shape
    P = table_BP.shape[1]
    known = {**settings("page_choice", device_name(q_BKGD.device)), **(tile or {})}
    pages_BKW = torch.empty((B, K, width), dtype=torch.int32, device=q_BKGD.device)
    heads = G if score == "softmax_max" else 1
    scores = torch.empty((B, K, heads, P), dtype=torch.float32, device=q_BKGD.device)
    if not B:
        return pages_BKW
    wide = max(triton.next_power_of_2(D), 16)
    given = (
        q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B, scores,
        q_BKGD.stride(0), q_BKGD.stride(1), q_BKGD.stride(2),
        marks_NKRD.stride(0), marks_NKRD.stride(1), table_BP.stride(0), K, P, first, last, width,
    )  # fmt: skip
    same = {"BOUNDS": marks_NKRD.shape[2] == 2, "G": G, "D": D, "DP": wide, "S": page_size}
    if score == "group_mean":
        tiles = known["mean"]
        together = min(tiles["heads"], triton.next_power_of_2(K))
        pages = max(tiles["tile"] // (together * wide), 1)
        span = pages * tiles["steps"]
        _score_mean[(B * triton.cdiv(K, together), triton.cdiv(P, span))](
            *given, **same, HEADS=together, PAGES=pages, SPAN=span, STAGES=tiles["stages"],
            num_warps=tiles["warps"],
        )  # fmt: skip
    else:
        tiles = known["heads"]
        _score_heads[(B * K, triton.cdiv(P, tiles["pages"] * tiles["steps"]))](
            *given, D**-0.5 * LOG2E, **same, WIDE=wide_dots(q_BKGD.dtype),
            GP=max(triton.next_power_of_2(G), 16), PAGES=tiles["pages"],
            SPAN=tiles["pages"] * tiles["steps"],
            num_warps=tiles["warps"], num_stages=tiles["stages"],
        )  # fmt: skip
    block = triton.next_power_of_2(P)
    per_warp = known["select_per_warp"]
    _select[(B * K,)](
        scores, lengths_B, keep_B, pages_BKW, K, P, first, last, width,
        HEADS=heads, S=page_size, PAGES=block, WIDTH=triton.next_power_of_2(width),
        num_warps=min(max(block // per_warp, 1), 32),
    )  # fmt: skip
    return pages_BKW
