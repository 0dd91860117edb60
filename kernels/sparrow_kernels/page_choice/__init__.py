"""Page choice: score landmarks against the query and keep the best pages within a budget.

`page_choice` is the op: it checks its arguments and runs the kernels on a GPU, the definition
elsewhere. `write_and_choose` is that op with the write of the newest token beside it, as a layer of
a decode step needs them. `score_evenly` and `best_evenly` are forms for even sequences on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, checks_values, pick_backend, require
from sparrow_kernels.landmarks import (
    Landmark,
    check_write,
    check_write_values,
)
from sparrow_kernels.landmarks.naive import write_kv as naive_write_kv
from sparrow_kernels.page_choice import naive
from sparrow_kernels.page_choice.budget import kept_pages
from sparrow_kernels.page_choice.cpu import best_evenly, score_evenly
from sparrow_kernels.page_choice.naive import Score, choose_pages, page_scores

__all__ = [
    "best_evenly",
    "choose_pages",
    "kept_pages",
    "page_choice",
    "page_scores",
    "score_evenly",
    "write_and_choose",
]

OP = "page_choice"
MAX_DIM = 256
MOST_PAGES = 32_768
"""What one program ranks: 128k tokens at page size 4."""


def page_choice(
    q_BKGD: Tensor,
    marks_NKRD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    page_size: int,
    first: int,
    last: int,
    width: int,
    score: Score = "group_mean",
    *,
    backend: Backend | None = None,
    debug: bool | None = None,
) -> Tensor:
    """Choose the pages that each KV head attends to.

    The definition is `naive.page_choice`. The kernel scores in float32 where the definition
    rounds the mean query to its dtype, and ranks `softmax_max` by logarithms. Everything stays on
    the device and the grid depends on shapes alone, so the call can be captured in a CUDA graph.

    Args:
        keep_B: pages to keep of each sequence, from its schedule (`kept_pages`).
        last: at least 1: a partly filled page has no landmark and is always kept.
        width: W, the most that any sequence may keep; what is kept beyond it is cut.
        debug: look at page numbers first, which waits for the GPU; None asks SPARROW_DEBUG.

    Returns:
        [B, K, W] pages in ascending order, P behind the last; int32 from the kernel, int64 from
        the definition.

    Raises:
        ValueError: arguments that do not fit, or in debug mode a page that is not there. Says which
            argument, what was found and what is allowed.
    """
    args = (q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B, page_size, first, last, width, score)
    _check_choice(*args)
    if checks_values(debug):
        _check_values(len(marks_NKRD), page_size, lengths_B, table_BP)
    if pick_backend(q_BKGD, backend) == "torch":
        return naive.page_choice(*args)
    _check_sizes(q_BKGD, table_BP)
    from sparrow_kernels.page_choice.triton import launch

    return launch(*args)


def write_and_choose(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor,
    new_keys_BKD: Tensor,
    new_values_BKD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    first: int,
    last: int,
    width: int,
    score: Score = "group_mean",
    landmark: Landmark = "mean",
    *,
    backend: Backend | None = None,
    debug: bool | None = None,
) -> Tensor:
    """Write each sequence's newest token, and choose the pages that its query attends to.

    The same as `write_kv` without starts and then `page_choice`, to the bit; on a GPU both share a
    launch. They may run beside each other: a page that the newest token fills is the sequence's
    last, whose landmark no choice looks at, as `last` is at least 1.

    Returns:
        As `page_choice`.

    Raises:
        ValueError: as `write_kv` and `page_choice`.
    """
    written = (keys_NKSD, values_NKSD, marks_NKRD, new_keys_BKD, new_values_BKD)
    places = (None, lengths_B, table_BP, landmark)
    check_write(*written, *places)
    size = keys_NKSD.shape[2]
    args = (q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B, size, first, last, width, score)
    _check_choice(*args)
    if checks_values(debug):
        check_write_values(len(keys_NKSD), size, len(lengths_B), None, lengths_B, table_BP)
    if pick_backend(q_BKGD, backend) == "torch":
        naive_write_kv(*written, *places)
        return naive.page_choice(*args)
    _check_sizes(q_BKGD, table_BP)
    from sparrow_kernels.landmarks.triton import plan
    from sparrow_kernels.page_choice.triton import launch

    return launch(*args, write=plan(*written, *places, 1))


def _check_choice(
    q_BKGD: Tensor,
    marks_NKRD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    page_size: int,
    first: int,
    last: int,
    width: int,
    score: Score,
) -> None:
    _check(q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B)
    P = table_BP.shape[1]
    require(score in ("group_mean", "softmax_max"), OP, f"no score is called {score!r}")
    require(page_size >= 1, OP, f"page_size must be 1 or more, found {page_size}")
    require(first >= 0, OP, f"first must be 0 or more, found {first}")
    require(last >= 1, OP, f"last must be 1 or more (the partial page is kept), found {last}")
    least = min(first + last, P)
    require(least <= width <= P, OP, f"width must be {least} to {P}, found {width}")


def _check_sizes(q_BKGD: Tensor, table_BP: Tensor) -> None:
    """What the kernels ask for beyond the definition."""
    D, P = q_BKGD.shape[3], table_BP.shape[1]
    require(D <= MAX_DIM, OP, f"the kernel takes head dims up to {MAX_DIM}, found {D}")
    require(P <= MOST_PAGES, OP, f"at most {MOST_PAGES} pages a sequence, found a table of {P}")


def _check(
    q_BKGD: Tensor, marks_NKRD: Tensor, table_BP: Tensor, lengths_B: Tensor, keep_B: Tensor
) -> None:
    require(q_BKGD.dim() == 4, OP, f"q must be [B, K, G, D], found shape {tuple(q_BKGD.shape)}")
    B, K, _, D = q_BKGD.shape
    require(q_BKGD.stride(3) == 1, OP, "q must be contiguous in its last axis")
    shape = tuple(marks_NKRD.shape)
    fits = len(shape) == 4 and shape[1] == K and shape[2] in (1, 2) and shape[3] == D
    require(fits, OP, f"landmarks must be [N, {K}, 1 or 2, {D}], found shape {shape}")
    packed = marks_NKRD.stride(3) == 1 and (shape[2] == 1 or marks_NKRD.stride(2) == D)
    require(packed, OP, f"a landmark's numbers must follow each other: {marks_NKRD.stride()}")
    same = marks_NKRD.dtype == q_BKGD.dtype and marks_NKRD.device == q_BKGD.device
    found = f"{marks_NKRD.dtype} on {marks_NKRD.device} beside {q_BKGD.dtype} on {q_BKGD.device}"
    require(same, OP, f"landmarks must have the dtype and device of q, found {found}")
    fits = table_BP.dim() == 2 and table_BP.shape[0] == B and table_BP.shape[1] > 0
    require(fits, OP, f"table must be [{B}, P], found shape {tuple(table_BP.shape)}")
    require(table_BP.stride(1) == 1, OP, "table must be contiguous in its last axis")
    for name, numbers in (("table", table_BP), ("lengths", lengths_B), ("keep", keep_B)):
        integers = numbers.dtype in (torch.int32, torch.int64) and numbers.device == q_BKGD.device
        found = f"{numbers.dtype} on {numbers.device}"
        require(integers, OP, f"{name} must hold int32 or int64 on {q_BKGD.device}, found {found}")
        shaped = name == "table" or tuple(numbers.shape) == (B,)
        require(shaped, OP, f"{name} must be [{B}], found shape {tuple(numbers.shape)}")


def _check_values(N: int, S: int, lengths_B: Tensor, table_BP: Tensor) -> None:
    P = table_BP.shape[1]
    longest = int(lengths_B.max()) if len(lengths_B) else 0
    require(longest <= P * S, OP, f"length {longest} is beyond the {P} pages of the table")
    used_BP = torch.arange(P, device=table_BP.device) * S < lengths_B[:, None]
    wrong_BP = used_BP & ((table_BP < 0) | (table_BP >= N))
    if bool(wrong_BP.any()):
        b, p = wrong_BP.nonzero()[0].tolist()
        found = f"table[{b}, {p}] is page {int(table_BP[b, p])}"
        raise ValueError(f"{OP}: {found}, but there are landmarks of pages 0 to {N - 1}")
