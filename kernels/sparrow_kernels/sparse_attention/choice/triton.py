"""The kernel that keeps each row's best pages: a search for the score of the last one kept.

Scores are compared as integers of the same order. Shape suffixes: K KV heads, n rows of a chunk,
P pages, W words, L tokens of the stream.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _signed(x):
    """Unsigned numbers counted from 0 as signed ones counted from the lowest."""
    return (x ^ 0x80000000).to(tl.int32, bitcast=True)


@triton.jit
def _select(
    scores_ptr,  # [K, n, P] float32, contiguous; not read if every row is dense
    keep_ptr,  # [n] int32: pages kept; as many as there are for a row that attends to all
    words_ptr,  # [K, W, L] int32, at the chunk's first row
    n,
    P,
    W,
    L,
    t0,  # position of the chunk's first row in its sequence
    first,
    last,
    PAGE: tl.constexpr,
    SCORED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1).to(tl.int64)
    page = tl.arange(0, BLOCK)[None, :]
    pages = ((t0 + row) // PAGE + 1)[:, None]
    chosen = page < pages
    if SCORED:
        keep = tl.load(keep_ptr + row, mask=row < n, other=0)[:, None]
        candidate = (page >= first) & (page < pages - last) & (row < n)[:, None]
        at = scores_ptr + (k * n + row)[:, None] * P + page
        x = tl.load(at, mask=candidate, other=0.0)
        # one zero; one NaN, above all numbers
        x = tl.where(x == 0, 0.0, x)
        x = tl.where(x != x, float("nan"), x)
        raw = x.to(tl.int32, bitcast=True)
        # the lowest number is that of a NaN, so no candidate has it
        order = tl.where(candidate, raw ^ ((raw >> 31) & 0x7FFFFFFF), -2147483648)
        best = keep - first - last
        # the largest number, counted from the lowest, that at least `best` candidates reach: from
        # the highest bit down, until as many reach it as are wanted
        least = tl.zeros([ROWS, 1], tl.uint32)
        bit = tl.full([ROWS, 1], 0x80000000, tl.uint32)
        exact = row[:, None] >= n
        going = tl.min(exact.to(tl.int32)) == 0
        while going:
            tried = least | bit
            reached = tl.sum((order >= _signed(tried)).to(tl.int32), axis=1, keep_dims=True)
            least = tl.where((reached >= best) & (exact == 0), tried, least)
            exact = exact | (reached == best)
            bit = bit >> 1
            going = tl.min(tl.where(exact | (bit == 0), 1, 0)) == 0
        above = order > _signed(least)
        level = (order == _signed(least)).to(tl.int32)
        room = best - tl.sum(above.to(tl.int32), axis=1, keep_dims=True)
        kept = above | ((level != 0) & (tl.cumsum(level, axis=1) <= room))
        reserved = (page < first) | (page >= pages - last)
        chosen = chosen & (kept | reserved | (keep >= pages))
    bits = tl.reshape(chosen.to(tl.int32), [ROWS, BLOCK // 32, 32])
    packed = tl.sum(bits << tl.arange(0, 32)[None, None, :], axis=2)
    word = tl.arange(0, BLOCK // 32).to(tl.int64)[None, :]
    tl.store(words_ptr + (k * W + word) * L + row[:, None], packed, (word < W) & (row < n)[:, None])


def select(
    scores_KnP: Tensor | None,
    keep_n: Tensor,
    words_KWn: Tensor,
    start: int,
    pages: int,
    page_size: int,
    first: int,
    last: int,
) -> None:
    """Fill the words of rows start, start + 1, ... of one sequence.

    Args:
        scores_KnP: None if every one of these rows attends to all it can.
        keep_n: int32.
        words_KWn: a slice, along its last axis, of contiguous [K, W, L].
        pages: P, or more than the last row's pages if there are no scores.
    """
    K, W, n = words_KWn.shape
    block = max(triton.next_power_of_2(pages), 32 * triton.next_power_of_2(W))
    rows = 1 if words_KWn.is_cuda else 64
    _select[(triton.cdiv(n, rows), K)](
        keep_n if scores_KnP is None else scores_KnP,
        keep_n,
        words_KWn,
        n,
        pages,
        W,
        words_KWn.stride(1),
        start,
        first,
        last,
        PAGE=page_size,
        SCORED=scores_KnP is not None,
        ROWS=rows,
        BLOCK=block,
        num_warps=max(1, min(block // 1024, 16)),
    )
