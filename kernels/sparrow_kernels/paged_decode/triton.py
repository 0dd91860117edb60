"""Paged decode as one kernel, for every page or for chosen ones.

A *row* is one KV head of one sequence. Its tokens, in the order in which they are attended to, are
cut into chunks of a fixed number; a program takes one chunk of one row and walks over it in tiles.
Where a row has several chunks, the program that arrives last merges them, in their order. How a row
is cut depends on nothing but its own tokens and the launch settings: keeping every page gives the
very bits of the dense call, and neighbours in the batch or the width of the choice change nothing.

Slots beyond a sequence's length are never read. Shape suffixes as in naive.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.dispatch import device_name, settings, wide_dots
from sparrow_kernels.paged_decode.naive import Attended

LOG2E = 1.4426950408889634


@triton.jit
def _named_pages(pages, t, S: tl.constexpr, CHOSEN: tl.constexpr):
    """Logical page of each token."""
    index = t // S
    if CHOSEN:
        index = tl.load(pages + index)
    return index


@triton.jit(do_not_specialize=["P", "W", "chunks", "chunk_size"])
def _decode(
    q, keys, values, table, pages, keep, lengths, out, lse, part_out, part_lse, arrived,
    stride_qb, stride_qk, stride_qg, stride_kn, stride_kh, stride_vn, stride_vh,
    stride_tb, stride_pb, stride_ph, stride_eb, stride_eh,
    K, P, W, chunks, chunk_size, scale_log2,
    CHOSEN: tl.constexpr, WIDE: tl.constexpr,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, MERGE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    b = (row // K).to(tl.int64)
    h = (row % K).to(tl.int64)
    length = tl.minimum(tl.load(lengths + b).to(tl.int32), P * S)
    table += b * stride_tb
    pages += b * stride_pb + h * stride_ph
    tokens = length
    if CHOSEN:
        kept = tl.minimum(tl.load(keep + b * stride_eb + h * stride_eh).to(tl.int32), W)
        kept = tl.where(length > 0, kept, 0)
        count = tl.cdiv(length, S)
        # of an ascending choice only the last page can be the sequence's last, partly filled one
        last = tl.load(pages + kept - 1, mask=kept > 0, other=-1)
        tokens = kept * S - tl.where(last == count - 1, count * S - length, 0)
    lo = chunk * chunk_size
    if (chunk > 0) & (lo >= tokens):
        return
    hi = tl.minimum(lo + chunk_size, tokens)
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    t = tl.arange(0, BLOCK)
    q_at = q + b * stride_qb + h * stride_qk + g[:, None] * stride_qg + d[None, :]
    q_GD = tl.load(q_at, mask=(g[:, None] < G) & (d[None, :] < D), other=0.0)
    if WIDE:
        q_GD = q_GD.to(tl.float32)
    keys += h * stride_kh
    values += h * stride_vh
    m_G = tl.full([GP], -float("inf"), tl.float32)
    l_G = tl.zeros([GP], tl.float32)
    acc_GD = tl.zeros([GP, DP], tl.float32)
    # page numbers run ahead of the tiles: no tile waits for a look-up
    end = tl.maximum(hi - 1, lo)
    any_token = hi > lo
    n_T = tl.zeros([BLOCK], tl.int32)
    p_T = tl.zeros([BLOCK], tl.int32)
    if any_token:
        p_T = _named_pages(pages, tl.minimum(lo + t, end), S, CHOSEN).to(tl.int32)
        n_T = tl.load(table + p_T).to(tl.int32)
        p_T = _named_pages(pages, tl.minimum(lo + BLOCK + t, end), S, CHOSEN).to(tl.int32)
    for start in range(lo, hi, BLOCK):
        at_T = tl.minimum(start + t, end)
        slot_T1 = ((at_T % S) * D)[:, None]
        n_T1 = n_T.to(tl.int64)[:, None]
        if DP == D:
            k_TD = tl.load(keys + (n_T1 * stride_kn + slot_T1) + d[None, :])
            v_TD = tl.load(values + (n_T1 * stride_vn + slot_T1) + d[None, :])
        else:
            k_TD = tl.load(
                keys + (n_T1 * stride_kn + slot_T1) + d[None, :], mask=d[None, :] < D, other=0.0
            )
            v_TD = tl.load(
                values + (n_T1 * stride_vn + slot_T1) + d[None, :],
                mask=d[None, :] < D,
                other=0.0,
            )
        n_T = tl.load(table + p_T).to(tl.int32)
        p_T = _named_pages(pages, tl.minimum(start + 2 * BLOCK + t, end), S, CHOSEN).to(tl.int32)
        if WIDE:
            k_TD = k_TD.to(tl.float32)
            v_TD = v_TD.to(tl.float32)
            s_GT = tl.dot(q_GD, tl.trans(k_TD), input_precision="ieee")
        else:
            s_GT = tl.dot(q_GD, tl.trans(k_TD))
        s_GT = tl.where((start + t < hi)[None, :], s_GT * scale_log2, -float("inf"))
        top_G = tl.maximum(m_G, tl.max(s_GT, 1))
        w_GT = tl.exp2(s_GT - top_G[:, None])
        fade_G = tl.exp2(m_G - top_G)
        l_G = l_G * fade_G + tl.sum(w_GT, 1)
        acc_GD = acc_GD * fade_G[:, None]
        if WIDE:
            acc_GD += tl.dot(w_GT, v_TD, input_precision="ieee")
        else:
            acc_GD = tl.dot(w_GT.to(v_TD.dtype), v_TD, acc_GD)
        m_G = top_G
    some_G = tl.where(l_G > 0, l_G, 1.0)  # an empty slot has no weights to divide by
    acc_GD = acc_GD / some_G[:, None]
    z_G = tl.where(l_G > 0, m_G + tl.log2(some_G), -float("inf"))
    parts = tl.cdiv(tokens, chunk_size)
    if parts > 1:
        at = row.to(tl.int64) * chunks + chunk
        held = (g[:, None] < G) & (d[None, :] < D)
        tl.store(part_out + (at * G + g[:, None]) * D + d[None, :], acc_GD, mask=held)
        tl.store(part_lse + at * G + g, z_G, mask=g < G)
        # every thread's part is written before this program is counted
        tl.debug_barrier()
        before = tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu")
        if before == parts - 1:
            tl.debug_barrier()
            _merge(part_out, part_lse, out, lse, row.to(tl.int64), chunks, parts, G, D, DP, MERGE)
            tl.store(arrived + row, 0)
    else:
        at = row.to(tl.int64) * G
        held = (g[:, None] < G) & (d[None, :] < D)
        tl.store(
            out + (at + g[:, None]) * D + d[None, :],
            acc_GD.to(out.dtype.element_ty),
            mask=held,
        )
        tl.store(lse + at + g, z_G * 0.6931471805599453, mask=g < G)


@triton.jit
def _merge(
    part_out, part_lse, out, lse, row, chunks, parts,
    G: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, MERGE: tl.constexpr,
):  # fmt: skip
    """Join a row's chunks, MERGE at a time: their number must not depend on the launch's width."""
    d = tl.arange(0, DP)
    c = tl.arange(0, MERGE)
    for g in tl.static_range(G):
        m = -float("inf")
        l = 0.0  # noqa: E741
        acc_D = tl.zeros([DP], tl.float32)
        for begin in range(0, parts, MERGE):
            at_C = (row * chunks + begin + c) * G + g
            there_C = begin + c < parts
            z_C = tl.load(part_lse + at_C, mask=there_C, other=-float("inf"), cache_modifier=".cg")
            o_CD = tl.load(
                part_out + at_C[:, None] * D + d[None, :],
                mask=there_C[:, None] & (d[None, :] < D),
                other=0.0,
                cache_modifier=".cg",
            )
            top = tl.maximum(m, tl.max(z_C, 0))
            w_C = tl.exp2(z_C - top)
            fade = tl.exp2(m - top)
            acc_D = acc_D * fade + tl.sum(w_C[:, None] * o_CD, 0)
            l = l * fade + tl.sum(w_C, 0)  # noqa: E741
            m = top
        tl.store(out + (row * G + g) * D + d, (acc_D / l).to(out.dtype.element_ty), mask=d < D)
        tl.store(lse + row * G + g, (m + tl.log2(l)) * 0.6931471805599453)


def pick_settings(rows: int, dim: int, device: str) -> dict[str, Any]:
    """Tile and chunk sizes for so many rows of this head dim on a GPU.

    The same for dense and sparse calls, and whatever their lengths, so that their results can be
    the same to the bit.
    """
    known = settings("paged_decode", device)
    by_dim = known["by_dim"]
    tile = dict(by_dim.get(str(triton.next_power_of_2(dim)), by_dim["128"]))
    chunk = next(size for least, size in known["chunk_by_rows"] if rows >= least)
    tile["chunk"] = max(chunk, tile["block"])
    return tile


_counters: dict[tuple[torch.device, int], Tensor] = {}
COUNTERS = 1 << 16


def arrival_counters(device: torch.device, rows: int) -> Tensor:
    """Zeros that a launch counts its finished programs in, and leaves as zeros.

    One buffer for each stream, so that launches of two streams do not count in each other's. What
    is made while a CUDA graph is captured belongs to the graph and is cleared at each replay.
    """
    if device.type != "cuda" or rows > COUNTERS:
        return torch.zeros(rows, dtype=torch.int32, device=device)
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(rows, dtype=torch.int32, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key not in _counters:
        _counters[key] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    return _counters[key]


def launch(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    table_BP: Tensor,
    pages_BKW: Tensor | None,
    keep_BK: Tensor | None,
    lengths_B: Tensor,
    scale: float,
    counters_R: Tensor | None = None,
    tile: dict[str, Any] | None = None,
) -> Attended:
    """Run the kernel; arguments are checked by the caller.

    Args:
        keep_BK: how many of `pages_BKW` a row attends to, the rest is not read. [B, K] or [B, 1].
        counters_R: zeros of int32, B * K or more; left as zeros. Pass them to calls that are
            captured in a CUDA graph: it saves clearing new ones at each replay.
        tile: launch settings instead of the tuned ones.
    """
    B, K, G, D = q_BKGD.shape
    S = keys_NKSD.shape[2]
    P = table_BP.shape[1]
    rows = B * K
    tile = tile or pick_settings(rows, D, device_name(q_BKGD.device))
    W = P if pages_BKW is None else pages_BKW.shape[2]
    chunks = max(triton.cdiv(W * S, tile["chunk"]), 1)
    out_BKGD = torch.empty((B, K, G, D), dtype=q_BKGD.dtype, device=q_BKGD.device)
    lse_BKG = torch.empty((B, K, G), dtype=torch.float32, device=q_BKGD.device)
    # of the right types, and never touched while a row is one chunk
    part_out, part_lse, arrived = lse_BKG, lse_BKG, lse_BKG.view(torch.int32)
    if chunks > 1:
        part_out = torch.empty((rows, chunks, G, D), dtype=torch.float32, device=q_BKGD.device)
        part_lse = torch.empty((rows, chunks, G), dtype=torch.float32, device=q_BKGD.device)
        arrived = arrival_counters(q_BKGD.device, rows) if counters_R is None else counters_R
    pages, keep = pages_BKW, keep_BK
    stride_pb = stride_ph = stride_eb = stride_eh = 0
    if pages is None or keep is None:
        pages = keep = table_BP
    else:
        # one choice may stand for all sequences or all heads
        stride_pb, stride_ph = (pages.stride(i) if pages.shape[i] > 1 else 0 for i in (0, 1))
        stride_eb, stride_eh = (keep.stride(i) if keep.shape[i] > 1 else 0 for i in (0, 1))
    if rows == 0:
        return Attended(out_BKGD, lse_BKG)
    _decode[(rows, chunks)](
        q_BKGD, keys_NKSD, values_NKSD, table_BP, pages, keep, lengths_B,
        out_BKGD, lse_BKG, part_out, part_lse, arrived,
        q_BKGD.stride(0), q_BKGD.stride(1), q_BKGD.stride(2),
        keys_NKSD.stride(0), keys_NKSD.stride(1), values_NKSD.stride(0), values_NKSD.stride(1),
        table_BP.stride(0), stride_pb, stride_ph, stride_eb, stride_eh,
        K, P, W, chunks, tile["chunk"], scale * LOG2E,
        CHOSEN=pages_BKW is not None, WIDE=wide_dots(q_BKGD.dtype),
        G=G, GP=max(triton.next_power_of_2(G), 16), D=D, DP=max(triton.next_power_of_2(D), 16),
        S=S, BLOCK=tile["block"], MERGE=32, num_warps=tile["warps"], num_stages=tile["stages"],
    )  # fmt: skip
    return Attended(out_BKGD, lse_BKG)
