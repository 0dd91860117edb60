"""Products of a few tokens with a large matrix, the bulk of a decoding step of a real model.

On the CPU, BLAS takes a product with 8 to 64 rows up to twice as long when the few rows come
first (at 10 rows: experiments/LOG.md). So there the matrix comes first and the result is turned;
small matrices, which stay in the cache, and a GPU take the plain way.

Shape suffixes: N tokens, M numbers in, C numbers out.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FEW = range(8, 65)
"""Tokens for which turning pays."""

LARGE = 2**18
"""Numbers of a matrix from which it pays: 1 MiB in float32."""


def linear(x_NM: Tensor, weight_CM: Tensor, bias_C: Tensor | None = None) -> Tensor:
    """What F.linear gives, up to rounding: [N, C], contiguous."""
    if not _turned(x_NM, weight_CM):
        return F.linear(x_NM, weight_CM, bias_C)
    y_NC: Tensor = torch.mm(weight_CM, x_NM.t()).t().contiguous()
    return y_NC if bias_C is None else y_NC.add_(bias_C)


def add_product(sum_NC: Tensor, x_NM: Tensor, weight_MC: Tensor) -> None:
    """Add x @ weight to `sum_NC` in place; the weight is a transposed view, as layers keep it."""
    if _turned(x_NM, weight_MC):
        sum_NC.add_(torch.mm(weight_MC.t(), x_NM.t()).t())
    else:
        sum_NC.addmm_(x_NM, weight_MC)


def _turned(x: Tensor, weight: Tensor) -> bool:
    few = x.dim() == 2 and len(x) in FEW
    return few and weight.numel() >= LARGE and x.device.type == "cpu"
