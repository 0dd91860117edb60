"""The first kernel of page choice: scores of all landmarks, in float32, a span of a row a program.

A *row* is one KV head of one sequence. Sequences that keep all their pages are not scored. Shape
suffixes: G query heads of a KV head (padded), P pages, D head dim.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparrow_kernels.landmarks.triton import write_pages


@triton.jit
def kept_of(lengths, keep, b, S: tl.constexpr, first, last, width):
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


@triton.jit(do_not_specialize=["P", "width", "spans", "span"])
def score_kernel(
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
def write_and_score_kernel(
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
    count, kept = kept_of(lengths, keep, b, S, first, last, width)
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
