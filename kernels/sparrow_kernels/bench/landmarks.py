"""The fused write of keys, values and landmarks beside plain torch indexing."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sparrow_kernels.bench.inputs import QWEN_1_7B, Cache, make_cache
from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_kernels.bench.timing import median_ms
from sparrow_kernels.landmarks import page_landmarks, write_kv

OP = "landmarks"
SIZE = 16


def rows(device: str, quick: bool) -> Iterator[Row]:
    """One token of each sequence, in and at the end of a page; whole prompts."""
    batch, length = (2, 512) if quick else (16, 16_384)
    cache = make_cache(device, QWEN_1_7B, batch, length, SIZE)
    yield decoding(cache, full=True)
    yield decoding(cache, full=False)
    yield from prompts(cache)


def empty_marks(cache: Cache) -> Tensor:
    """Room for a mean of every page."""
    N, K, _, D = cache.keys_NKSD.shape
    return torch.empty((N, K, 1, D), device=cache.table_BP.device, dtype=torch.bfloat16)


def decoding(cache: Cache, full: bool) -> Row:
    """One token of each sequence. The time of a launch: there is little to move."""
    B, K, _, D = cache.q_BKGD.shape
    lengths = cache.lengths_B if full else cache.lengths_B - 3
    new = torch.randn((2, B, K, D), device=lengths.device, dtype=torch.bfloat16)
    marks = empty_marks(cache)

    def call() -> None:
        pool = (cache.keys_NKSD, cache.values_NKSD, marks)
        write_kv(*pool, new[0], new[1], None, lengths, cache.table_BP)

    row = B * K * D * 2
    count = 4 * row + (SIZE * row if full else 0)
    what = "one token each" + (", pages fill" if full else "")
    shape = f"batch {B}, {QWEN_1_7B}, page {SIZE}"
    return Row(OP, shape, what, median_ms([call] * 20), count, 0, byte_floor(count))


def prompts(cache: Cache) -> Iterator[Row]:
    """All prompts in one call, beside index_put and a mean."""
    B, K, _, D = cache.q_BKGD.shape
    length = int(cache.lengths_B[0])
    device = cache.table_BP.device
    new = torch.randn((2, B * length, K, D), device=device, dtype=torch.bfloat16)
    starts = torch.arange(B + 1, device=device, dtype=torch.int32) * length
    marks = empty_marks(cache)
    pages: Tensor = cache.table_BP.flatten().long()

    def call() -> None:
        pool = (cache.keys_NKSD, cache.values_NKSD, marks)
        lengths, table = cache.lengths_B, cache.table_BP
        write_kv(*pool, new[0], new[1], starts, lengths, table, longest=length)

    def plain() -> None:
        paged = new.view(2, len(pages), SIZE, K, D).transpose(2, 3)
        cache.keys_NKSD[pages] = paged[0]
        cache.values_NKSD[pages] = paged[1]
        marks[pages] = page_landmarks(paged[0], "mean")

    count = 2 * new.numel() * 2 + marks.numel() * 2
    shape, floor = f"batch {B} x {length}, {QWEN_1_7B}, page {SIZE}", byte_floor(count)
    yield Row(OP, shape, "torch, indexed", median_ms([plain]), count, 0, floor, peer=True)
    yield Row(OP, shape, "whole prompts", median_ms([call]), count, 0, floor)
