"""Page choice as two kernels: scores of all landmarks, then the best of each row.

A *row* is one KV head of one sequence. The first kernel reads the landmarks of a span of a row's
pages and writes their scores in float32. The second ranks a row: it finds the score of the last
page to keep by narrowing the range of floats, counting; pages above it are kept, and of those equal
to it the first ones. No sort, no atomics: equal inputs, equal pages. Sequences that keep all their
pages are not scored.

Shape suffixes: G query heads of a KV head (padded), P pages, D head dim.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.dispatch import device_name, early_launch, settings, wide_dots
from sparrow_kernels.landmarks.triton import Work, write_pages
from sparrow_kernels.page_choice.naive import Score

LOG2E = 1.4426950408889634


@triton.jit
def _kept(lengths, keep, b, S: tl.constexpr, first, last, width):
    """Pages of a sequence, and how many of them it keeps."""
    count = tl.cdiv(tl.load(lengths + b).to(tl.int32), S)
    kept = tl.maximum(tl.load(keep + b).to(tl.int32), first + last)
    return count, tl.minimum(tl.minimum(kept, width), count)


@triton.jit
def _in_two_rows(x_D, g, kind: tl.constexpr, WIDE: tl.constexpr):
    """A float32 vector as the sum of two rows of a narrower kind; the other rows are 0."""
    if WIDE:
        return tl.where((g == 0)[:, None], x_D[None, :], 0.0)
    high_D = x_D.to(kind).to(tl.float32)
    rest = tl.where((g == 1)[:, None], (x_D - high_D)[None, :], 0.0)
    return tl.where((g == 0)[:, None], high_D[None, :], rest).to(kind)


@triton.jit
def _key_of(x):
    """Whole numbers in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF) ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _narrow(key, state, low, high, need):
    """Count the keys at or above two marks in the range, and keep the part that ends the choice."""
    both = (key >= low).to(tl.int32) + ((key >= high).to(tl.int32) << 16)
    # one sum for both: there are at most 2 ** 15 keys
    both = tl.sum(both, 0).to(tl.uint32, bitcast=True)
    state = _one_mark(state, low, (both & 0xFFFF).to(tl.int32), need)
    return _one_mark(state, high, (both >> 16).to(tl.int32), need)


@triton.jit
def _one_mark(state, mark, count, need):
    least, most, reach, above = state
    enough = (count >= need) & (mark > least)
    fewer = (count < need) & (mark < most)
    least = tl.where(enough, mark, least)
    reach = tl.where(enough, count, reach)
    return least, tl.where(fewer, mark, most), reach, tl.where(fewer, count, above)


@triton.jit(do_not_specialize=["P", "width", "spans", "span"])
def _score(
    q, marks, table, lengths, keep, scores,
    stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
    K, P, first, last, width, spans, span, scale_log2,
    EARLY: tl.constexpr, BOUNDS: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        # who ranks needs little room and may stand by
        tl.extra.cuda.gdc_launch_dependents()
    _score_span(
        tl.program_id(0), q, marks, table, lengths, keep, scores,
        stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
        K, P, first, last, width, spans, span, scale_log2,
        BOUNDS, WIDE, HEADS, G, GP, D, DP, S, TILE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["P", "width", "spans", "span", "writers"])
def _write_and_score(
    q, marks, table, lengths, keep, scores,
    stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
    K, P, first, last, width, spans, span, scale_log2,
    keys, values, new_keys, new_values,
    stride_kn, stride_kh, stride_vn, stride_vh, stride_nkt, stride_nkh, stride_nvt, stride_nvh,
    writers, parts,
    EARLY: tl.constexpr, BOUNDS: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    S: tl.constexpr, TILE: tl.constexpr, SLOTS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """The first programs write; none of the others looks at what they write."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    program = tl.program_id(0)
    if program < writers:
        write_pages(
            program // parts, 0, program % parts,
            keys, values, marks, new_keys, new_values, lengths, lengths, table,
            stride_kn, stride_kh, stride_vn, stride_vh, stride_mn, stride_mh,
            stride_nkt, stride_nkh, stride_nvt, stride_nvh, stride_tb,
            K, True, True, BOUNDS, D, S, 1, SLOTS, DIMS,
        )  # fmt: skip
    else:
        _score_span(
            program - writers, q, marks, table, lengths, keep, scores,
            stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
            K, P, first, last, width, spans, span, scale_log2,
            BOUNDS, WIDE, HEADS, G, GP, D, DP, S, TILE,
        )  # fmt: skip


@triton.jit
def _score_span(
    program, q, marks, table, lengths, keep, scores,
    stride_qb, stride_qk, stride_qg, stride_mn, stride_mh, stride_tb,
    K, P, first, last, width, spans, span, scale_log2,
    BOUNDS: tl.constexpr, WIDE: tl.constexpr,
    HEADS: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    S: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Score one span of a row. HEADS 1: by the mean query; else by each query head."""
    row = (program // spans).to(tl.int64)
    b = row // K
    h = row % K
    table += b * stride_tb
    marks += h * stride_mh
    lo = program % spans * span
    p = tl.arange(0, TILE)
    # page numbers run one tile ahead, and do not wait to know how many pages there are
    n_P = tl.load(table + tl.minimum(lo + p, P - 1))
    count, kept = _kept(lengths, keep, b, S, first, last, width)
    # all pages before `end` are full and have landmarks
    end = count - last
    # a sequence that keeps everything has nothing to score
    hi = tl.where(kept >= count, lo, tl.minimum(lo + span, end))
    d = tl.arange(0, DP)
    g = tl.arange(0, GP)
    q += b * stride_qb + h * stride_qk
    kind: tl.constexpr = marks.dtype.element_ty
    if HEADS == 1:
        mean_D = tl.zeros([DP], tl.float32)
        for i in tl.static_range(G):
            mean_D += tl.load(q + i * stride_qg + d, mask=d < D, other=0.0).to(tl.float32)
        mean_D = mean_D / G
        if BOUNDS:
            low_GD = _in_two_rows(tl.minimum(mean_D, 0.0), g, kind, WIDE)
            q_GD = _in_two_rows(tl.maximum(mean_D, 0.0), g, kind, WIDE)
        else:
            q_GD = _in_two_rows(mean_D, g, kind, WIDE)
    else:
        held = (g < G)[:, None] & (d < D)[None, :]
        q_GD = tl.load(q + g[:, None] * stride_qg + d[None, :], mask=held, other=0.0)
        if WIDE:
            q_GD = q_GD.to(tl.float32)
        if BOUNDS:
            low_GD = tl.where(q_GD < 0, q_GD, 0.0).to(q_GD.dtype)
            q_GD = tl.where(q_GD > 0, q_GD, 0.0).to(q_GD.dtype)
    for begin in range(lo, hi, TILE):
        at_PD = marks + (n_P.to(tl.int64)[:, None] * stride_mn + d[None, :])
        if DP == D:
            m_PD = tl.load(at_PD)
        else:
            m_PD = tl.load(at_PD, mask=(d < D)[None, :], other=0.0)
        if BOUNDS:
            if DP == D:
                n_PD = tl.load(at_PD + D)
            else:
                n_PD = tl.load(at_PD + D, mask=(d < D)[None, :], other=0.0)
            if WIDE:
                m_PD = m_PD.to(tl.float32)
                n_PD = n_PD.to(tl.float32)
            s_GP = tl.dot(low_GD, tl.trans(m_PD), input_precision="ieee")
            s_GP = tl.dot(q_GD, tl.trans(n_PD), s_GP, input_precision="ieee")
        else:
            if WIDE:
                m_PD = m_PD.to(tl.float32)
            s_GP = tl.dot(q_GD, tl.trans(m_PD), input_precision="ieee")
        n_P = tl.load(table + tl.minimum(begin + TILE + p, P - 1))
        seen = begin + p < hi
        if HEADS == 1:
            tl.store(scores + row * P + begin + p, tl.sum(s_GP, 0), mask=seen)
        else:
            out = scores + (row * HEADS + g[:, None]) * P + (begin + p)[None, :]
            tl.store(out, s_GP * scale_log2, mask=(g < G)[:, None] & seen[None, :])


@triton.jit(do_not_specialize=["P", "width"])
def _select(
    scores, lengths, keep, pages, K, P, first, last, width,
    EARLY: tl.constexpr, S: tl.constexpr, HEADS: tl.constexpr,
    PAGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The pages that one row keeps. HEADS > 1: scores are logits of so many query heads."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    count, kept = _kept(lengths, keep, row // K, S, first, last, width)
    p = tl.arange(0, PAGES)
    # who keeps all pages has none to choose among
    end = tl.where(kept < count, count - last, 0)
    free = (p >= first) & (p < end)
    s_P = tl.full([PAGES], -float("inf"), tl.float32)
    for g in tl.static_range(HEADS):
        z_P = tl.load(scores + (row * HEADS + g) * P + p, mask=free, other=-float("inf"))
        if HEADS > 1:
            top = tl.max(z_P, 0)
            top = tl.where(top == -float("inf"), 0.0, top)
            z_P -= top + tl.log2(tl.maximum(tl.sum(tl.exp2(z_P - top), 0), 1e-30))
        s_P = tl.maximum(s_P, z_P, propagate_nan=tl.PropagateNan.ALL)
    # 0 is the key of what cannot be chosen; -0 counts as 0
    key = tl.where(free, _key_of(tl.where(s_P == 0, 0.0, s_P)), 0)
    need = kept - first - last
    # `reach` keys are at least `least`, as many as needed or more; `above` are `most` or more
    state = (
        tl.zeros([], tl.uint32),
        tl.full([], 0xFFFFFFFF, tl.uint32),
        tl.full([], PAGES, tl.int32),
        tl.zeros([], tl.int32),
    )
    # the last page to keep mostly scores between an eighth and a half of the first
    best = tl.maximum(tl.max(key, 0), 4 << 23)
    state = _narrow(key, state, best - (3 << 23), best - (1 << 23), need)
    least, most, reach, above = state
    while (reach != need) & (most - least > 1):
        step = tl.maximum((most - least) // 3, 1).to(tl.uint32)
        state = _narrow(key, (least, most, reach, above), least + step, least + 2 * step, need)
        least, most, reach, above = state
    chosen = (key >= least) & free
    if reach > need:
        # all that are left are equal: the first ones
        even = (key == least) & free
        chosen &= (key > least) | (tl.cumsum(even.to(tl.int32), 0) <= need - above)
    chosen = (chosen | (p < first) | (p >= end)) & (p < count)
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
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
    write: Work | None = None,
) -> Tensor:
    """Run the kernels; arguments are checked by the caller.

    Args:
        tile: launch settings instead of the tuned ones.
        write: the newest token's write into these landmarks' pages, by the same launch as scores.

    Returns:
        [B, K, W] in int32.
    """
    B, K, G, D = q_BKGD.shape
    P = table_BP.shape[1]
    rows = B * K
    device = q_BKGD.device
    tile = {**settings("page_choice", device_name(device)), **(tile or {})}
    pages_BKW = torch.empty((B, K, width), dtype=torch.int32, device=device)
    # one head's softmax keeps the order of its scores
    heads = G if score == "softmax_max" else 1
    scores = torch.empty((B, K, heads, P), dtype=torch.float32, device=device)
    if not rows:
        return pages_BKW
    way = next(way for way in tile["by_marks"] if rows * P >= way["marks"])
    span = way["span"]
    spans = triton.cdiv(P, span)
    early = way["early"] and early_launch(device)
    more = {"launch_pdl": True} if early else {}
    # wide numbers take twice the room of the narrow ones that the tile was tuned for
    size = max(tile["tile"] * 2 // max(q_BKGD.element_size(), 2), 16)
    args = (
        q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B, scores,
        q_BKGD.stride(0), q_BKGD.stride(1), q_BKGD.stride(2),
        marks_NKRD.stride(0), marks_NKRD.stride(1), table_BP.stride(0),
        K, P, first, last, width, spans, span, D**-0.5 * LOG2E,
    )  # fmt: skip
    constants = {
        "EARLY": early,
        "BOUNDS": marks_NKRD.shape[2] == 2,
        "WIDE": wide_dots(q_BKGD.dtype),
        "HEADS": heads,
        "G": G,
        "GP": max(triton.next_power_of_2(G), 16),
        "D": D,
        "DP": max(triton.next_power_of_2(D), 16),
        "S": page_size,
        "TILE": size,
        "num_warps": tile["warps"],
        "num_stages": tile["stages"],
        **more,
    }
    if write is None:
        _score[(rows * spans,)](*args, **constants)
    else:
        keys, values, _, new_keys, new_values = write.args[:5]
        writers = write.grid[0] * write.grid[2]
        _write_and_score[(writers + rows * spans,)](
            *args, keys, values, new_keys, new_values,
            *(x.stride(i) for x in (keys, values, new_keys, new_values) for i in (0, 1)),
            writers, write.grid[2], **constants,
            SLOTS=write.constants["SLOTS"], DIMS=write.constants["DIMS"],
        )  # fmt: skip
    block = triton.next_power_of_2(P)
    _select[(rows,)](
        scores, lengths_B, keep_B, pages_BKW, K, P, first, last, width,
        EARLY=early, S=page_size, HEADS=heads, PAGES=block,
        WIDTH=triton.next_power_of_2(width),
        num_warps=min(max(block // tile["per_warp"], 1), 32), **more,
    )  # fmt: skip
    return pages_BKW
