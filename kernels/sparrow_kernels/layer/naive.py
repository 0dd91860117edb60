"""The definitions of what stands between a decoder layer's matrix products, in plain torch.

Rounding follows transformers: a norm is rounded to the dtype before its weight, the gate before it
meets the other half. The rotation stays in float32 or better and is rounded once.

Shape suffixes: N tokens, M width, K KV heads, H heads of a KV head (its query heads, its key, its
value), D head dim, C rotations (D / 2), P positions, I width inside the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x_NM: Tensor, weight_M: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean of squares + eps), rounded, times the weight."""
    wide = _wide(x_NM)
    scaled = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return scaled.to(x_NM.dtype) * weight_M


def norm_and_rotate(
    y_NKHD: Tensor, weight_HD: Tensor | None, turns_PC2: Tensor, position_N: Tensor, eps: float
) -> None:
    """Norm and rotate the query heads and the key of each KV head in place; the value stays.

    Args:
        weight_HD: weights of the norms of each head; None leaves them out. That of the value is
            not read.
        turns_PC2: cosine and sine of each position and pair, in float32 or better. The two numbers
            of a pair lie side by side in y.
        position_N: of each token; whole numbers.
    """
    parts = y_NKHD[:, :, :-1]
    x = _wide(parts)
    if weight_HD is not None:
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + eps)
        x = _wide(x.to(y_NKHD.dtype) * weight_HD[:-1])
    cos, sin = turns_PC2[position_N][:, None, None].to(x.dtype).unbind(-1)
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    parts.copy_(turned.flatten(-2))


def swiglu(both_N2I: Tensor) -> Tensor:
    """silu of the first half, times the second: [N, I]."""
    gate, up = both_N2I.chunk(2, dim=-1)
    return F.silu(gate) * up
