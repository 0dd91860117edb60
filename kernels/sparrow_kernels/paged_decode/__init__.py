"""Paged decode: attention of one new token over every page of the KV cache, or over chosen ones.

`paged_decode` is the op: it checks its arguments and runs the kernel on a GPU, the definition
elsewhere. `page_decode`, `row_decode` and `shared_row_decode` are forms for caches on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, checks_values, pick_backend, require
from sparrow_kernels.paged_decode import naive
from sparrow_kernels.paged_decode.cpu import (
    SharedRows,
    page_decode,
    row_decode,
    shared_row_decode,
)
from sparrow_kernels.paged_decode.naive import Attended, merge_attended

__all__ = [
    "Attended",
    "SharedRows",
    "merge_attended",
    "page_decode",
    "paged_decode",
    "row_decode",
    "shared_row_decode",
]

OP = "paged_decode"
MAX_GROUP, MAX_DIM = 16, 256


def paged_decode(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    table_BP: Tensor,
    pages_BKW: Tensor | None,
    lengths_B: Tensor,
    scale: float,
    *,
    keep_BK: Tensor | None = None,
    counters_R: Tensor | None = None,
    backend: Backend | None = None,
    debug: bool | None = None,
) -> Attended:
    """Attend from one query position a sequence to its chosen pages, or to all.

    The definition is `naive.paged_decode`. The kernel asks for more: chosen pages are pages in use
    of their sequence, so only a sequence's last page may be partly filled. Everything stays on the
    device and the grid depends on shapes alone, so the call can be captured in a CUDA graph.

    Args:
        pages_BKW: as the definition; integers, pages ascending, P behind the last. None: dense.
        keep_BK: how many of the pages each row attends to, [B, K] or [B, 1]. None: as many as are
            not P, which costs a count.
        counters_R: scratch for calls in a CUDA graph, see `triton.launch`.
        debug: look at page numbers first, which waits for the GPU; None asks SPARROW_DEBUG.

    Raises:
        ValueError: shapes, dtypes or strides that do not fit, or in debug mode a page that is not
            there. Says which argument, what was found and what is allowed.
    """
    _check(q_BKGD, keys_NKSD, values_NKSD, table_BP, pages_BKW, lengths_B, keep_BK)
    if checks_values(debug):
        _check_values(keys_NKSD, table_BP, pages_BKW, lengths_B)
    if pick_backend(q_BKGD, backend) == "torch":
        if pages_BKW is not None and keep_BK is not None:
            columns = torch.arange(pages_BKW.shape[2], device=pages_BKW.device)
            pages_BKW = pages_BKW.masked_fill(columns >= keep_BK[..., None], table_BP.shape[1])
        return naive.paged_decode(
            q_BKGD, keys_NKSD, values_NKSD, table_BP, pages_BKW, lengths_B, scale
        )
    D = q_BKGD.shape[3]
    require(D <= MAX_DIM, OP, f"the kernel takes head dims up to {MAX_DIM}, found {D}")
    from sparrow_kernels.paged_decode.triton import launch

    if pages_BKW is not None and keep_BK is None:
        keep_BK = (pages_BKW < table_BP.shape[1]).sum(dim=-1, dtype=torch.int32)
    return launch(
        q_BKGD,
        keys_NKSD,
        values_NKSD,
        table_BP,
        pages_BKW,
        keep_BK,
        lengths_B,
        scale,
        counters_R,
    )


def _check(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    table_BP: Tensor,
    pages_BKW: Tensor | None,
    lengths_B: Tensor,
    keep_BK: Tensor | None,
) -> None:
    require(q_BKGD.dim() == 4, OP, f"q must be [B, K, G, D], found shape {tuple(q_BKGD.shape)}")
    B, K, G, D = q_BKGD.shape
    require(1 <= G <= MAX_GROUP, OP, f"q has {G} query heads a KV head, allowed: 1 to {MAX_GROUP}")
    require(q_BKGD.stride(3) == 1, OP, "q must be contiguous in its last axis")
    for name, pool in (("keys", keys_NKSD), ("values", values_NKSD)):
        fits = pool.dim() == 4 and pool.shape[1] == K and pool.shape[3] == D
        require(fits, OP, f"{name} must be [N, {K}, S, {D}], found shape {tuple(pool.shape)}")
        found = f"{pool.dtype} on {pool.device} beside q's {q_BKGD.dtype} on {q_BKGD.device}"
        same = pool.dtype == q_BKGD.dtype and pool.device == q_BKGD.device
        require(same, OP, f"{name} must have the dtype and device of q, found {found}")
        packed = pool.stride(3) == 1 and pool.stride(2) == D
        require(packed, OP, f"slots of a page must follow each other in {name}: {pool.stride()}")
    shapes = tuple(keys_NKSD.shape), tuple(values_NKSD.shape)
    require(shapes[0] == shapes[1], OP, f"keys and values must have one shape, found {shapes}")
    for name, numbers in (
        ("table", table_BP),
        ("lengths", lengths_B),
        ("pages", pages_BKW),
        ("keep", keep_BK),
    ):
        if numbers is None:
            continue
        integers = numbers.dtype in (torch.int32, torch.int64) and numbers.device == q_BKGD.device
        found = f"{numbers.dtype} on {numbers.device}"
        require(integers, OP, f"{name} must hold int32 or int64 on {q_BKGD.device}, found {found}")
        dense = numbers.stride(-1) == 1 or numbers.shape[-1] == 1
        require(dense or name == "keep", OP, f"{name} must be contiguous in its last axis")
    fits = table_BP.dim() == 2 and table_BP.shape[0] == B and table_BP.shape[1] > 0
    require(fits, OP, f"table must be [{B}, P], found shape {tuple(table_BP.shape)}")
    found = str(tuple(lengths_B.shape))
    require(tuple(lengths_B.shape) == (B,), OP, f"lengths must be [{B}], found shape {found}")
    if pages_BKW is not None:
        shape = tuple(pages_BKW.shape)
        fits = len(shape) == 3 and shape[0] in (1, B) and shape[1] in (1, K) and shape[2] > 0
        require(fits, OP, f"pages must be [{B}, {K}, W] or [{B}, 1, W], found shape {shape}")
    if keep_BK is not None:
        shape = tuple(keep_BK.shape)
        fits = pages_BKW is not None and shape in ((B, K), (B, 1))
        require(fits, OP, f"keep goes with pages and must be [{B}, {K}] or [{B}, 1]: {shape}")


def _check_values(
    keys_NKSD: Tensor, table_BP: Tensor, pages_BKW: Tensor | None, lengths_B: Tensor
) -> None:
    N, _, S, _ = keys_NKSD.shape
    P = table_BP.shape[1]
    longest = int(lengths_B.max()) if len(lengths_B) else 0
    require(longest <= P * S, OP, f"length {longest} is beyond the {P} pages of the table")
    count_B1 = (lengths_B[:, None] + S - 1) // S
    used_BP = torch.arange(P, device=table_BP.device) < count_B1
    wrong_BP = used_BP & ((table_BP < 0) | (table_BP >= N))
    if bool(wrong_BP.any()):
        b, p = wrong_BP.nonzero()[0].tolist()
        found = f"table[{b}, {p}] is page {int(table_BP[b, p])}"
        raise ValueError(f"{OP}: {found}, but the pool has pages 0 to {N - 1}")
    if pages_BKW is None:
        return
    wrong_BKW = (pages_BKW < 0) | ((pages_BKW >= count_B1[..., None]) & (pages_BKW != P))
    if bool(wrong_BKW.any()):
        b, k, w = wrong_BKW.nonzero()[0].tolist()
        found = f"pages[{b}, {k}, {w}] is {int(pages_BKW[b, k, w])}"
        raise ValueError(f"{OP}: {found}, but the sequence uses {int(count_B1[b])} pages")
