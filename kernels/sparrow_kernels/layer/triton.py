"""The kernels of `layer`: a program a row, a KV head of a token, or a block of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, weight, out, stride_xn, M, eps, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    m = tl.arange(0, BLOCK)
    here = m < M
    wide = tl.load(x + n * stride_xn + m, mask=here, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / M + eps)
    kind = out.dtype.element_ty
    w = tl.load(weight + m, mask=here, other=0.0).to(tl.float32)
    # rounded before the weight, as the model does
    scaled = (wide * scale).to(kind).to(tl.float32)
    tl.store(out + n * M + m, (scaled * w).to(kind), mask=here)


def launch_rms_norm(x_NM: Tensor, weight_M: Tensor, eps: float) -> Tensor:
    """Run the kernel; arguments are checked by the caller."""
    N, M = x_NM.shape
    out = torch.empty((N, M), dtype=x_NM.dtype, device=x_NM.device)
    block = triton.next_power_of_2(M)
    if N:
        warps = min(max(block // 512, 1), 16)
        _rms_norm[(N,)](x_NM, weight_M, out, x_NM.stride(0), M, eps, BLOCK=block, num_warps=warps)
    return out


@triton.jit
def _norm_and_rotate(
    y, weight, turns, positions, K, eps,
    NORM: tl.constexpr, H: tl.constexpr, HP: tl.constexpr, D: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) // K).to(tl.int64)
    at = y + tl.program_id(0).to(tl.int64) * H * D
    h = tl.arange(0, HP)
    c = tl.arange(0, CP)
    # the last head is the value, which stays
    here = (h[:, None] < H - 1) & (c[None, :] < D // 2)
    even_at = h[:, None] * D + 2 * c[None, :]
    even = tl.load(at + even_at, mask=here, other=0.0).to(tl.float32)
    odd = tl.load(at + even_at + 1, mask=here, other=0.0).to(tl.float32)
    kind = y.dtype.element_ty
    if NORM:
        squares = tl.sum(even * even + odd * odd, 1)
        scale = tl.rsqrt(squares / D + eps)[:, None]
        w_even = tl.load(weight + even_at, mask=here, other=0.0).to(tl.float32)
        w_odd = tl.load(weight + even_at + 1, mask=here, other=0.0).to(tl.float32)
        even = ((even * scale).to(kind).to(tl.float32) * w_even).to(kind).to(tl.float32)
        odd = ((odd * scale).to(kind).to(tl.float32) * w_odd).to(kind).to(tl.float32)
    turn = turns + tl.load(positions + n).to(tl.int64) * D + 2 * c
    cos = tl.load(turn, mask=c < D // 2, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(turn + 1, mask=c < D // 2, other=0.0).to(tl.float32)[None, :]
    tl.store(at + even_at, (even * cos - odd * sin).to(kind), mask=here)
    tl.store(at + even_at + 1, (even * sin + odd * cos).to(kind), mask=here)


def launch_norm_and_rotate(
    y_NKHD: Tensor, weight_HD: Tensor | None, turns_PC2: Tensor, position_N: Tensor, eps: float
) -> None:
    """Run the kernel; arguments are checked by the caller."""
    N, K, H, D = y_NKHD.shape
    if not N * K:
        return
    weight = y_NKHD if weight_HD is None else weight_HD
    _norm_and_rotate[(N * K,)](
        y_NKHD, weight, turns_PC2, position_N, K, eps,
        NORM=weight_HD is not None, H=H, HP=triton.next_power_of_2(H), D=D,
        CP=triton.next_power_of_2(D // 2), num_warps=1 if H * D <= 512 else 4,
    )  # fmt: skip


@triton.jit
def _swiglu(both, out, stride_n, inner, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < inner
    gate = tl.load(both + n * stride_n + i, mask=here, other=0.0).to(tl.float32)
    up = tl.load(both + n * stride_n + inner + i, mask=here, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    lit = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + n * inner + i, (lit * up).to(kind), mask=here)


def launch_swiglu(both_N2I: Tensor) -> Tensor:
    """Run the kernel; arguments are checked by the caller."""
    N, inner = both_N2I.shape[0], both_N2I.shape[1] // 2
    out = torch.empty((N, inner), dtype=both_N2I.dtype, device=both_N2I.device)
    block = min(triton.next_power_of_2(inner), 2048)
    if N:
        grid = (N, triton.cdiv(inner, block))
        _swiglu[grid](both_N2I, out, both_N2I.stride(0), inner, BLOCK=block, num_warps=4)
    return out
