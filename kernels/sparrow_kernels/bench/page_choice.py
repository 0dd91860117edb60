"""Page choice beside torch's matrix product and top-k on landmarks that lie in order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparrow_kernels.bench.inputs import QWEN_1_7B, QWEN_4B, QWEN_14B, SMOLLM2, Heads
from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_kernels.bench.timing import median_ms
from sparrow_kernels.page_choice import page_choice

OP = "page_choice"
FIRST, LAST = 1, 2
LAYERS = 4
"""Sets of landmarks that a timing goes through: one set is 134 MB, the L2 cache 50."""

TOKENS = 4096
"""The budget: k is this over the page size, 256 pages of 16."""


def rows(device: str, quick: bool) -> Iterator[Row]:
    """Page sizes, kinds of landmark and of score, group sizes."""
    if quick:
        yield ours(Choice(device, QWEN_1_7B, 2, 2048, 16, 1, 512))
        return
    plain = Choice(device, QWEN_1_7B, 32, 32_768, 16)
    yield peer(plain)
    yield ours(plain, aim_ms=0.045)
    yield ours(plain, score="softmax_max")
    del plain
    for size in (4, 8, 32, 64):
        choice = Choice(device, QWEN_1_7B, 32, 32_768, size)
        if size == 4:
            yield peer(choice)
        yield ours(choice, aim_ms=1.6 * byte_floor(choice.bytes) if size == 4 else None)
        del choice
    yield ours(Choice(device, QWEN_1_7B, 32, 32_768, 16, bounds=2))
    for heads in (QWEN_4B, QWEN_14B, SMOLLM2):
        yield ours(Choice(device, heads, 32, 32_768, 16))
    yield ours(Choice(device, QWEN_1_7B, 8, 131_072, 4, layers=2))


class Choice:
    """Landmarks of several layers, all pages full, tables in random order."""

    def __init__(
        self,
        device: str,
        heads: Heads,
        batch: int,
        length: int,
        size: int,
        bounds: int = 1,
        budget: int = TOKENS,
        layers: int = LAYERS,
    ) -> None:
        pages = length // size
        self.heads, self.size, self.keep = heads, size, budget // size
        self.shape = f"batch {batch}, {heads}, {pages} landmarks, k {self.keep}, page {size}"
        if bounds == 2:
            self.shape += ", bounds"
        noise = torch.Generator(device).manual_seed(0)
        marks = (layers, batch * pages, heads.kv, bounds, heads.dim)
        self.marks_LNKRD = torch.randn(marks, generator=noise, device=device, dtype=torch.bfloat16)
        if bounds == 2:
            self.marks_LNKRD = self.marks_LNKRD.sort(dim=3).values
        order = torch.randperm(batch * pages, generator=noise, device=device)
        self.table_BP = order.view(batch, pages).int()
        self.lengths_B = torch.full((batch,), length, dtype=torch.int32, device=device)
        self.keep_B = torch.full((batch,), self.keep, dtype=torch.int32, device=device)
        q = (layers, batch, heads.kv, heads.group, heads.dim)
        self.q_LBKGD = torch.randn(q, generator=noise, device=device, dtype=torch.bfloat16)

    @property
    def bytes(self) -> int:
        """Of one layer's landmarks."""
        return self.marks_LNKRD[0].numel() * self.marks_LNKRD.element_size()

    def call(self, layer: int, score: Any, tile: dict[str, Any] | None = None) -> Tensor:
        given = (
            self.q_LBKGD[layer],
            self.marks_LNKRD[layer],
            self.table_BP,
            self.lengths_B,
            self.keep_B,
            self.size,
            FIRST,
            LAST,
            self.keep,
            score,
        )
        if tile is None:
            return page_choice(*given)
        from sparrow_kernels.page_choice.triton import launch

        return launch(*given, tile=tile)

    def ms(self, score: Any = "group_mean", tile: dict[str, Any] | None = None) -> float:
        layers = range(len(self.q_LBKGD))
        calls = [partial(self.call, i, score, tile) for i in layers for _ in range(2)]
        return median_ms(calls)


def ours(choice: Choice, score: str = "group_mean", aim_ms: float | None = None) -> Row:
    floor, model = byte_floor(choice.bytes), choice.heads.model
    ms = choice.ms(score)
    return Row(OP, choice.shape, score, ms, choice.bytes, 0, floor, False, aim_ms, model)


def peer(choice: Choice) -> Row:
    """The mean query times all landmarks in order, and torch.topk: no reserved pages, no order."""
    B, P = choice.table_BP.shape
    K, D = choice.heads.kv, choice.heads.dim
    marks_LBKPD = choice.marks_LNKRD[:, :, :, 0].view(-1, B, P, K, D).transpose(2, 3).contiguous()

    def call(layer: int) -> object:
        mean_BK1D = choice.q_LBKGD[layer].mean(dim=2, keepdim=True)
        scores_BKP = (mean_BK1D @ marks_LBKPD[layer].transpose(2, 3)).squeeze(2)
        return scores_BKP.topk(choice.keep, dim=-1, sorted=False)

    ms = median_ms([partial(call, i) for i in range(len(marks_LBKPD)) for _ in range(2)])
    floor = byte_floor(choice.bytes)
    return Row(OP, choice.shape, "torch matmul, topk", ms, choice.bytes, 0, floor, peer=True)
