"""New keys and values into their pages, and the landmarks of the pages that they fill: one kernel.

A program takes a few pages of one sequence and KV head. It stores the new tokens that lie in them,
and where that fills a page it reads the slots that were written before, for the landmark. Shape
suffixes: P pages of a program, S slots of a page, D part of the head dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.dispatch import device_name, early_launch, settings
from sparrow_kernels.landmarks.naive import Landmark


@triton.jit
def _write(
    keys, values, marks, new_keys, new_values, starts, lengths, table,
    stride_kn, stride_kh, stride_vn, stride_vh, stride_mn, stride_mh,
    stride_nkt, stride_nkh, stride_nvt, stride_nvh, stride_tb,
    K,
    EARLY: tl.constexpr, ONE: tl.constexpr, MARKS: tl.constexpr, BOUNDS: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, PAGES: tl.constexpr, SLOTS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    write_pages(
        tl.program_id(0), tl.program_id(1), tl.program_id(2),
        keys, values, marks, new_keys, new_values, starts, lengths, table,
        stride_kn, stride_kh, stride_vn, stride_vh, stride_mn, stride_mh,
        stride_nkt, stride_nkh, stride_nvt, stride_nvh, stride_tb,
        K, ONE, MARKS, BOUNDS, D, S, PAGES, SLOTS, DIMS,
    )  # fmt: skip


@triton.jit
def write_pages(
    sequence, block, part,
    keys, values, marks, new_keys, new_values, starts, lengths, table,
    stride_kn, stride_kh, stride_vn, stride_vh, stride_mn, stride_mh,
    stride_nkt, stride_nkh, stride_nvt, stride_nvh, stride_tb,
    K,
    ONE: tl.constexpr, MARKS: tl.constexpr, BOUNDS: tl.constexpr,
    D: tl.constexpr, S: tl.constexpr, PAGES: tl.constexpr, SLOTS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    """One program's share: PAGES pages of a sequence, and DIMS numbers of a head."""
    b = sequence.to(tl.int64)
    h = (part % K).to(tl.int64)
    part = part // K
    length = tl.load(lengths + b).to(tl.int32)
    if ONE:
        begin = b
        fresh = tl.minimum(length, 1)
    else:
        begin = tl.load(starts + b).to(tl.int64)
        fresh = (tl.load(starts + b + 1).to(tl.int64) - begin).to(tl.int32)
        fresh = tl.where(length > 0, fresh, 0)
    past = length - fresh
    page_P = past // S + block * PAGES + tl.arange(0, PAGES)
    if past // S * S + block * PAGES * S < length and fresh > 0:
        in_use_P = page_P * S < length
        n_P = tl.load(table + b * stride_tb + page_P, mask=in_use_P, other=0).to(tl.int64)
        s = tl.arange(0, SLOTS)
        d = part * DIMS + tl.arange(0, DIMS)
        at_PS = page_P[:, None] * S + s[None, :]
        here_PS = (s[None, :] < S) & (at_PS < length)
        new_PS = here_PS & (at_PS >= past)
        whole_d = d[None, None, :] < D
        new_PSD = new_PS[:, :, None] & whole_d
        token_PS = begin + at_PS - past
        slot_PSD = (s[None, :] * D)[:, :, None] + d[None, None, :]
        n_P11 = n_P[:, None, None]
        k_at = new_keys + token_PS[:, :, None] * stride_nkt + h * stride_nkh + d[None, None, :]
        k_PSD = tl.load(k_at, mask=new_PSD, other=0.0)
        v_at = new_values + token_PS[:, :, None] * stride_nvt + h * stride_nvh + d[None, None, :]
        v_PSD = tl.load(v_at, mask=new_PSD, other=0.0)
        pool_k = keys + n_P11 * stride_kn + h * stride_kh + slot_PSD
        tl.store(pool_k, k_PSD, mask=new_PSD)
        tl.store(values + n_P11 * stride_vn + h * stride_vh + slot_PSD, v_PSD, mask=new_PSD)
        if MARKS:
            full_P = (page_P + 1) * S <= length
            old_PS = here_PS & (at_PS < past) & full_P[:, None]
            old_PSD = tl.load(pool_k, mask=old_PS[:, :, None] & whole_d, other=0.0)
            k_PSD = tl.where(new_PS[:, :, None], k_PSD, old_PSD).to(tl.float32)
            mark_at = marks + n_P[:, None] * stride_mn + h * stride_mh + d[None, :]
            mask = full_P[:, None] & (d[None, :] < D)
            kind = marks.dtype.element_ty
            slots = s[None, :, None] < S
            if BOUNDS:
                low_PD = tl.min(tl.where(slots, k_PSD, float("inf")), 1)
                high_PD = tl.max(tl.where(slots, k_PSD, -float("inf")), 1)
                tl.store(mark_at, low_PD.to(kind), mask=mask)
                tl.store(mark_at + D, high_PD.to(kind), mask=mask)
            else:
                tl.store(mark_at, (tl.sum(k_PSD, 1) / S).to(kind), mask=mask)


class Work(NamedTuple):
    """A write as programs: how many along each axis, and what each of them is told."""

    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    constants: dict[str, Any]


def plan(
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor | None,
    new_keys_TKD: Tensor,
    new_values_TKD: Tensor,
    starts_B1: Tensor | None,
    lengths_B: Tensor,
    table_BP: Tensor,
    kind: Landmark,
    longest: int,
) -> Work:
    """Cut a write into programs; arguments are checked by the caller.

    Args:
        longest: at least as many as the new tokens of any sequence; with 0 there is no program.
    """
    _, K, S, D = keys_NKSD.shape
    slots = triton.next_power_of_2(S)
    tile = settings("landmarks", device_name(keys_NKSD.device))["tile"]
    dims = min(triton.next_power_of_2(D), max(tile // slots, 16))
    # tokens that begin in the middle of a page touch one page more
    touched = 1 if starts_B1 is None else (longest + S - 2) // S + 1
    wanted = max(tile // (slots * dims), 1)
    pages = min(wanted, triton.next_power_of_2(touched))
    marks = keys_NKSD if marks_NKRD is None else marks_NKRD
    args = (
        keys_NKSD, values_NKSD, marks, new_keys_TKD, new_values_TKD,
        lengths_B if starts_B1 is None else starts_B1, lengths_B, table_BP,
        keys_NKSD.stride(0), keys_NKSD.stride(1), values_NKSD.stride(0), values_NKSD.stride(1),
        marks.stride(0), marks.stride(1),
        new_keys_TKD.stride(0), new_keys_TKD.stride(1),
        new_values_TKD.stride(0), new_values_TKD.stride(1), table_BP.stride(0),
        K,
    )  # fmt: skip
    constants = {
        "ONE": starts_B1 is None,
        "MARKS": marks_NKRD is not None,
        "BOUNDS": kind == "minmax",
        "D": D,
        "S": S,
        "PAGES": pages,
        "SLOTS": slots,
        "DIMS": dims,
    }
    blocks = triton.cdiv(touched, pages) if longest else 0
    grid = (len(lengths_B), blocks, K * triton.cdiv(D, dims))
    return Work(grid, args, constants)


def launch(work: Work, device: torch.device) -> None:
    """Run the kernel for a write."""
    if 0 in work.grid:
        return
    known = settings("landmarks", device_name(device))
    early = known["early"] and early_launch(device)
    more = {"launch_pdl": True} if early else {}
    _write[work.grid](*work.args, **work.constants, EARLY=early, num_warps=known["warps"], **more)
