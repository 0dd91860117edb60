"""What stands between a decoder layer's matrix products, each as one kernel.

`naive` has the definitions. Nothing waits for the GPU, and grids depend on shapes alone: the calls
can be captured in a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, pick_backend, require
from sparrow_kernels.layer import naive

__all__ = ["norm_and_rotate", "rms_norm", "swiglu"]


def rms_norm(x_NM: Tensor, weight_M: Tensor, eps: float, backend: Backend | None = None) -> Tensor:
    """x / sqrt(mean of squares + eps), rounded, times the weight; a new tensor.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    op = "rms_norm"
    shape = tuple(x_NM.shape)
    require(x_NM.dim() == 2 and x_NM.stride(1) == 1, op, f"x must be [N, M] by rows, found {shape}")
    fits = tuple(weight_M.shape) == shape[1:] and weight_M.dtype == x_NM.dtype
    found = f"{tuple(weight_M.shape)} of {weight_M.dtype}"
    require(fits, op, f"the weight must be [{shape[1]}] of {x_NM.dtype}, found {found}")
    require(weight_M.is_contiguous(), op, "the weight must be contiguous")
    if pick_backend(x_NM, backend) == "torch":
        return naive.rms_norm(x_NM, weight_M, eps)
    from sparrow_kernels.layer.triton import launch_rms_norm

    return launch_rms_norm(x_NM, weight_M, eps)


def norm_and_rotate(
    y_NKHD: Tensor,
    weight_HD: Tensor | None,
    turns_PC2: Tensor,
    position_N: Tensor,
    eps: float,
    backend: Backend | None = None,
) -> None:
    """Norm and rotate queries and keys in place; see `naive.norm_and_rotate`.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit.
    """
    op = "norm_and_rotate"
    shape = tuple(y_NKHD.shape)
    fits = y_NKHD.dim() == 4 and y_NKHD.is_contiguous() and shape[2] >= 2 and shape[3] % 2 == 0
    require(fits, op, f"y must be [N, K, H, D], contiguous, D even, found {shape}")
    N, _, H, D = shape
    if weight_HD is not None:
        fits = tuple(weight_HD.shape) == (H, D) and weight_HD.dtype == y_NKHD.dtype
        fits = fits and weight_HD.is_contiguous()
        found = f"{tuple(weight_HD.shape)} of {weight_HD.dtype}"
        require(fits, op, f"weights must be [{H}, {D}] of {y_NKHD.dtype}, found {found}")
    fits = tuple(turns_PC2.shape[1:]) == (D // 2, 2) and turns_PC2.is_contiguous()
    fits = fits and turns_PC2.dtype in (torch.float32, torch.float64)
    found = f"{tuple(turns_PC2.shape)} of {turns_PC2.dtype}"
    require(fits, op, f"turns must be [P, {D // 2}, 2], float32 or better, found {found}")
    fits = tuple(position_N.shape) == (N,) and position_N.dtype in (torch.int32, torch.int64)
    found = f"{tuple(position_N.shape)} of {position_N.dtype}"
    require(fits, op, f"positions must be [{N}] of int32 or int64, found {found}")
    if pick_backend(y_NKHD, backend) == "torch":
        return naive.norm_and_rotate(y_NKHD, weight_HD, turns_PC2, position_N, eps)
    from sparrow_kernels.layer.triton import launch_norm_and_rotate

    return launch_norm_and_rotate(y_NKHD, weight_HD, turns_PC2, position_N, eps)


def swiglu(both_N2I: Tensor, backend: Backend | None = None) -> Tensor:
    """silu of the first half, times the second; a new tensor.

    Raises:
        ValueError: not an even number of contiguous columns.
    """
    shape = tuple(both_N2I.shape)
    fits = both_N2I.dim() == 2 and shape[1] % 2 == 0 and both_N2I.stride(1) == 1
    require(fits, "swiglu", f"needs [N, 2 * I] by rows, found {shape}")
    if pick_backend(both_N2I, backend) == "torch":
        return naive.swiglu(both_N2I)
    from sparrow_kernels.layer.triton import launch_swiglu

    return launch_swiglu(both_N2I)
