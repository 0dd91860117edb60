"""Paged decode as one kernel, for every page or for chosen ones.

A *row* is one KV head of one sequence. Its tokens, in the order in which they are attended to, are
cut into chunks; a program takes one chunk of one row and walks over it in tiles. Where a row has
several chunks, the program that arrives last merges them, in their order. How a row is cut depends
on its own tokens, the number of rows and the launch settings alone: keeping every page gives the
very bits of the dense call, and what other rows hold or how wide the choice is changes nothing.

Slots beyond a sequence's length are never read. Shape suffixes as in naive.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.dispatch import (
    arrival_counters,
    device_name,
    early_launch,
    settings,
    wide_dots,
)
from sparrow_kernels.paged_decode.naive import Attended

LOG2E = 1.4426950408889634


@triton.jit
def _named_pages(pages, t, S: tl.constexpr, CHOSEN: tl.constexpr):
    """Logical page of each token."""
    index = t // S
    if CHOSEN:
        index = tl.load(pages + index)
    return index


@triton.jit
def _cut(room, base, least, whole, unit, BLOCK: tl.constexpr):
    """Into how many chunks a row of so many slots is cut, and their size in whole tiles.

    `base` chunks fill the GPU with the rows there are, if that leaves each `least` slots; chunks
    longer than `whole` are cut to `unit`, so that long rows do not end long after short ones.
    """
    parts = tl.maximum(tl.minimum(base, room // least), 1)
    parts = tl.where(room > parts * whole, tl.maximum(tl.cdiv(room, unit), parts), parts)
    size = tl.maximum(tl.cdiv(tl.cdiv(room, parts), BLOCK) * BLOCK, BLOCK)
    return tl.maximum(tl.cdiv(room, size), 1), size


@triton.jit(do_not_specialize=["P", "W", "chunks", "base", "least", "whole", "unit"])
def _decode(
    q, keys, values, table, pages, keep, lengths, out, lse, part_out, part_lse, arrived,
    stride_qb, stride_qk, stride_qg, stride_kn, stride_kh, stride_vn, stride_vh,
    stride_tb, stride_pb, stride_ph, stride_eb, stride_eh,
    K, P, W, chunks, base, least, whole, unit, scale_log2,
    CHOSEN: tl.constexpr, ONE: tl.constexpr, EARLY: tl.constexpr, WIDE: tl.constexpr,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr, XP: tl.constexpr, MERGE: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    b = (row // K).to(tl.int64)
    h = (row % K).to(tl.int64)
    table += b * stride_tb
    pages += b * stride_pb + h * stride_ph
    t = tl.arange(0, BLOCK)
    if ONE:
        # a row of one chunk does not wait to know its tokens before it looks up its first pages
        p_T = _named_pages(pages, tl.minimum(t, W * S - 1), S, CHOSEN)
        early_T = tl.load(table + tl.minimum(tl.maximum(p_T, 0), P - 1))
        next_T = _named_pages(pages, tl.minimum(t + BLOCK, W * S - 1), S, CHOSEN)
    length = tl.minimum(tl.load(lengths + b).to(tl.int32), P * S)
    count = tl.cdiv(length, S)
    kept = count
    tokens = length
    if CHOSEN:
        kept = tl.minimum(tl.load(keep + b * stride_eb + h * stride_eh).to(tl.int32), W)
        kept = tl.where(length > 0, kept, 0)
    room = kept * S
    parts, size = _cut(room, base, least, whole, unit, BLOCK)
    chunk = tl.program_id(1)
    lo = 0
    if not ONE:
        lo = chunk * size
        if chunk >= parts:
            return
    if CHOSEN:
        # of an ascending choice only the last page can be the sequence's last, partly filled one
        last = tl.load(pages + kept - 1, mask=kept > 0, other=-1)
        tokens = room - tl.where(last == count - 1, count * S - length, 0)
    hi = tl.minimum(lo + size, tokens)
    # a tile's surplus lanes read the chunk's last token again: no mask, and nothing unwritten
    end = tl.maximum(hi - 1, lo)
    stop = tl.minimum(lo + size, room) - 1
    if ONE:
        final = tl.load(pages + (kept - 1), mask=kept > 0, other=0) if CHOSEN else kept - 1
        final_row = tl.load(table + final, mask=kept > 0, other=0)
        n_T = tl.where(t <= stop, early_T, final_row)
        p_T = tl.where(t + BLOCK <= stop, next_T, final)
    else:
        # an empty slot has no page to look up
        p_T = _named_pages(pages, tl.maximum(tl.minimum(lo + t, stop), 0), S, CHOSEN)
        n_T = tl.load(table + tl.minimum(p_T, P - 1))
        p_T = _named_pages(pages, tl.maximum(tl.minimum(lo + BLOCK + t, stop), 0), S, CHOSEN)
    g = tl.arange(0, GP)
    d = tl.arange(0, DP)
    q_at = q + b * stride_qb + h * stride_qk + g[:, None] * stride_qg + d[None, :]
    q_GD = tl.load(q_at, mask=(g[:, None] < G) & (d[None, :] < D), other=0.0)
    if WIDE:
        q_GD = q_GD.to(tl.float32)
    keys += h * stride_kh
    values += h * stride_vh
    m_G = tl.full([GP], -float("inf"), tl.float32)
    l_G = tl.zeros([GP], tl.float32)
    acc_GD = tl.zeros([GP, DP], tl.float32)
    for start in range(lo, hi, BLOCK):
        n_T1 = n_T.to(tl.int64)[:, None]
        slot_T1 = (tl.minimum(start + t, end) % S * D)[:, None]
        k_at = keys + (n_T1 * stride_kn + slot_T1) + d[None, :]
        v_at = values + (n_T1 * stride_vn + slot_T1) + d[None, :]
        if DP == D:
            k_TD = tl.load(k_at)
            v_TD = tl.load(v_at)
        else:
            k_TD = tl.load(k_at, mask=d[None, :] < D, other=0.0)
            v_TD = tl.load(v_at, mask=d[None, :] < D, other=0.0)
        # page numbers run ahead of the tiles: no tile waits for a look-up
        n_T = tl.load(table + p_T)
        p_T = _named_pages(pages, tl.minimum(start + 2 * BLOCK + t, stop), S, CHOSEN)
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
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    if not ONE and parts > 1:
        at = row.to(tl.int64) * chunks + chunk
        held = (g[:, None] < G) & (d[None, :] < D)
        tl.store(part_out + (at * G + g[:, None]) * D + d[None, :], acc_GD, mask=held)
        tl.store(part_lse + at * G + g, z_G, mask=g < G)
        # every thread's part is written before this program is counted
        tl.debug_barrier()
        before = tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu")
        if before == parts - 1:
            tl.debug_barrier()
            _merge(part_out, part_lse, out, lse, row.to(tl.int64), chunks, parts, G, D, XP, MERGE)
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
    G: tl.constexpr, D: tl.constexpr, XP: tl.constexpr, MERGE: tl.constexpr,
):  # fmt: skip
    """Join a row's chunks, MERGE at a time: their number must not depend on the launch's width."""
    x = tl.arange(0, XP)  # all query heads' outputs, one after the other
    c = tl.arange(0, MERGE)
    whole = x < G * D
    g = tl.minimum(x // D, G - 1)
    m_X = tl.full([XP], -float("inf"), tl.float32)
    l_X = tl.zeros([XP], tl.float32)
    acc_X = tl.zeros([XP], tl.float32)
    for begin in range(0, parts, MERGE):
        at_C1 = (row * chunks + begin + c)[:, None] * G
        there_CX = (begin + c < parts)[:, None] & whole[None, :]
        # other programs wrote them: past the cache of this multiprocessor
        z_CX = tl.load(
            part_lse + at_C1 + g[None, :], mask=there_CX, other=-float("inf"), cache_modifier=".cg"
        )
        o_CX = tl.load(
            part_out + at_C1 * D + x[None, :], mask=there_CX, other=0.0, cache_modifier=".cg"
        )
        top_X = tl.maximum(m_X, tl.max(z_CX, 0))
        top_X = tl.where(whole, top_X, 0.0)
        w_CX = tl.exp2(z_CX - top_X[None, :])
        fade_X = tl.exp2(m_X - top_X)
        acc_X = acc_X * fade_X + tl.sum(w_CX * o_CX, 0)
        l_X = l_X * fade_X + tl.sum(w_CX, 0)
        m_X = top_X
    l_X = tl.where(whole, l_X, 1.0)
    tl.store(out + row * G * D + x, (acc_X / l_X).to(out.dtype.element_ty), mask=whole)
    z_X = (m_X + tl.log2(l_X)) * 0.6931471805599453
    tl.store(lse + row * G + g, z_X, mask=whole & (x % D == 0))


def pick_settings(rows: int, dim: int, device: str) -> dict[str, Any]:
    """Tile and cut for so many rows of this head dim on a GPU.

    The same for dense and sparse calls, and whatever their lengths, so that their results can be
    the same to the bit.
    """
    by_dim = settings("paged_decode", device)["by_dim"]
    ways = by_dim.get(str(triton.next_power_of_2(dim)), by_dim["128"])
    return dict(next(way for way in ways if rows >= way["rows"]))


def most_chunks(room: int, tile: dict[str, Any], rows: int) -> int:
    """The most chunks that `_cut` makes of a row of at most so many slots."""
    parts = max(min(base_chunks(tile, rows), room // tile["least"]), 1)
    longest = triton.cdiv(room, tile["unit"]) if room > tile["whole"] else 1
    return int(max(parts, longest))


def base_chunks(tile: dict[str, Any], rows: int) -> int:
    """Chunks of a row that fill the GPU once."""
    return max(int(tile["slots"]) // rows, 1)


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
    if rows == 0:
        return Attended(q_BKGD.clone(), q_BKGD.sum(dim=-1).float())
    chunks = most_chunks(W * S, tile, rows)
    # wide numbers take twice the room of the narrow ones that tiles were tuned for
    block = max(tile["block"] * 2 // max(q_BKGD.element_size(), 2), 16)
    heads = triton.next_power_of_2(G * D)
    early = tile["early"] and early_launch(q_BKGD.device)
    more = {"launch_pdl": True} if early else {}
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
    _decode[(rows, chunks)](
        q_BKGD, keys_NKSD, values_NKSD, table_BP, pages, keep, lengths_B,
        out_BKGD, lse_BKG, part_out, part_lse, arrived,
        q_BKGD.stride(0), q_BKGD.stride(1), q_BKGD.stride(2),
        keys_NKSD.stride(0), keys_NKSD.stride(1), values_NKSD.stride(0), values_NKSD.stride(1),
        table_BP.stride(0), stride_pb, stride_ph, stride_eb, stride_eh,
        K, P, W, chunks, base_chunks(tile, rows), tile["least"], tile["whole"], tile["unit"],
        scale * LOG2E, EARLY=early, ONE=chunks == 1,
        CHOSEN=pages_BKW is not None, WIDE=wide_dots(q_BKGD.dtype),
        G=G, GP=max(triton.next_power_of_2(G), 16), D=D, DP=max(triton.next_power_of_2(D), 16),
        S=S, BLOCK=block, XP=heads, MERGE=max(2048 // heads, 1),
        num_warps=tile["warps"], num_stages=tile["stages"], **more,
    )  # fmt: skip
    return Attended(out_BKGD, lse_BKG)
