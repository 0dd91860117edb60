"""Landmarks: one summary of a full page's keys per KV head, written together with the keys."""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, checks_values, pick_backend, require
from sparrow_kernels.landmarks import naive
from sparrow_kernels.landmarks.naive import Landmark, landmark_rows, page_landmarks

__all__ = ["Landmark", "landmark_rows", "page_landmarks", "write_kv"]

OP = "write_kv"


def write_kv(
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor | None,
    new_keys_TKD: Tensor,
    new_values_TKD: Tensor,
    starts_B1: Tensor | None,
    lengths_B: Tensor,
    table_BP: Tensor,
    kind: Landmark = "mean",
    *,
    longest: int | None = None,
    backend: Backend | None = None,
    debug: bool | None = None,
) -> None:
    """Write new tokens into the pool, and the landmark of every page that they fill.

    The definition is `naive.write_kv`. A page must not be named twice among the pages written.

    Args:
        starts_B1: as the definition; None is decoding, one token a sequence.
        longest: at least as many as the new tokens of any sequence. None: all new tokens, which
            is right but starts programs for nothing. Decoding does not need it.
        debug: look at page numbers first, which waits for the GPU; None asks SPARROW_DEBUG.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit, or in debug mode a page that is not
            there. Says which argument, what was found and what is allowed.
    """
    args = (keys_NKSD, values_NKSD, marks_NKRD, new_keys_TKD, new_values_TKD)
    places = (starts_B1, lengths_B, table_BP, kind)
    T = len(lengths_B) if starts_B1 is None else len(new_keys_TKD)
    check_write(*args, *places)
    if checks_values(debug):
        N, _, S, _ = keys_NKSD.shape
        check_write_values(N, S, T, starts_B1, lengths_B, table_BP)
    if pick_backend(keys_NKSD, backend) == "torch":
        return naive.write_kv(*args, *places)
    from sparrow_kernels.landmarks.triton import launch, plan

    most = 1 if starts_B1 is None else T if longest is None else longest
    launch(plan(*args, *places, most), keys_NKSD.device)


def check_write(
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor | None,
    new_keys_TKD: Tensor,
    new_values_TKD: Tensor,
    starts_B1: Tensor | None,
    lengths_B: Tensor,
    table_BP: Tensor,
    kind: Landmark,
) -> None:
    """Raise ValueError unless all of a write's arguments fit each other."""
    N, K, _, D = _check_pool(keys_NKSD, values_NKSD)
    R = landmark_rows(kind)
    like = f"{keys_NKSD.dtype} on {keys_NKSD.device}"
    if marks_NKRD is not None:
        fits = tuple(marks_NKRD.shape) == (N, K, R, D) and marks_NKRD.dtype == keys_NKSD.dtype
        found = f"{tuple(marks_NKRD.shape)} of {marks_NKRD.dtype}"
        require(fits, OP, f"marks must be [{N}, {K}, {R}, {D}] of {like}, found {found}")
        packed = marks_NKRD.stride(3) == 1 and marks_NKRD.stride(2) in (D, 1)
        require(packed, OP, f"a landmark's numbers must follow each other: {marks_NKRD.stride()}")
    B = len(lengths_B)
    T = B if starts_B1 is None else len(new_keys_TKD)
    for name, new in (("new keys", new_keys_TKD), ("new values", new_values_TKD)):
        fits = tuple(new.shape) == (T, K, D) and new.dtype == keys_NKSD.dtype
        found = f"{tuple(new.shape)} of {new.dtype}"
        require(fits, OP, f"{name} must be [{T}, {K}, {D}] of {like}, found {found}")
        require(new.stride(2) == 1, OP, f"{name} must be contiguous in the last axis")
    fits = table_BP.dim() == 2 and table_BP.shape[0] == B and table_BP.stride(1) == 1
    require(fits, OP, f"table must be [{B}, P], contiguous, found {tuple(table_BP.shape)}")
    for name, numbers in (("starts", starts_B1), ("lengths", lengths_B), ("table", table_BP)):
        kind_fits = numbers is None or numbers.dtype in (torch.int32, torch.int64)
        require(kind_fits, OP, f"{name} must hold int32 or int64")
    fits = starts_B1 is None or tuple(starts_B1.shape) == (B + 1,)
    require(fits, OP, f"starts must hold B + 1 = {B + 1} numbers")


def _check_pool(keys_NKSD: Tensor, values_NKSD: Tensor) -> tuple[int, int, int, int]:
    shapes = tuple(keys_NKSD.shape), tuple(values_NKSD.shape)
    fits = keys_NKSD.dim() == 4 and shapes[0] == shapes[1]
    require(fits, OP, f"keys and values must be [N, K, S, D] alike, found {shapes}")
    same = (keys_NKSD.dtype, keys_NKSD.device) == (values_NKSD.dtype, values_NKSD.device)
    require(same, OP, "keys and values must have one dtype and device")
    N, K, S, D = keys_NKSD.shape
    for name, pool in (("keys", keys_NKSD), ("values", values_NKSD)):
        packed = pool.stride(3) == 1 and pool.stride(2) == D
        require(packed, OP, f"slots of a page must follow each other in {name}: {pool.stride()}")
    return N, K, S, D


def check_write_values(
    N: int, S: int, T: int, starts_B1: Tensor | None, lengths_B: Tensor, table_BP: Tensor
) -> None:
    P = table_BP.shape[1]
    longest = int(lengths_B.max()) if len(lengths_B) else 0
    require(longest <= P * S, OP, f"length {longest} is beyond the {P} pages of the table")
    if starts_B1 is not None:
        ordered = bool((starts_B1.diff() >= 0).all()) and int(starts_B1[-1]) <= T
        require(ordered, OP, f"starts must rise from 0 to at most {T}, found {starts_B1.tolist()}")
        more = (starts_B1.diff() > lengths_B) & (lengths_B > 0)
        found = more.nonzero().flatten().tolist()
        require(not found, OP, f"sequences {found} have more new tokens than their length")
    used_BP = torch.arange(P, device=table_BP.device) * S < lengths_B[:, None]
    wrong_BP = used_BP & ((table_BP < 0) | (table_BP >= N))
    if bool(wrong_BP.any()):
        b, p = wrong_BP.nonzero()[0].tolist()
        found_page = f"table[{b}, {p}] is page {int(table_BP[b, p])}"
        raise ValueError(f"{OP}: {found_page}, but the pool has pages 0 to {N - 1}")
