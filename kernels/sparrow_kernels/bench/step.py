"""The attention of one whole decode step: all layers of a model, in one CUDA graph.

Every layer writes its new keys, values and landmarks; the first attends to everything, the others
choose their pages and attend to those. The graph is captured once, at the longest length, and
replayed at all lengths: lengths and budgets are read on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sparrow_kernels.bench.inputs import QWEN_1_7B, Heads
from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_kernels.bench.timing import replay_ms
from sparrow_kernels.landmarks import write_kv
from sparrow_kernels.page_choice import kept_pages, write_and_choose
from sparrow_kernels.paged_decode import paged_decode

OP = "step"
FIRST, LAST = 1, 2
AIMS = {16_384: 1.65, 24_576: 1.50, 32_768: 1.45}
"""Times the byte floor that is aimed at, by length: page 16, budget 1,024, batch 16."""


def rows(device: str, quick: bool) -> Iterator[Row]:
    """Page sizes; page 16 at three lengths has an aim."""
    if quick:
        yield from step_rows(Step(device, QWEN_1_7B, 2, 2, 2048, 16, 512), {2048: 0.0})
        return
    yield from step_rows(Step(device, QWEN_1_7B, 28, 16, 32_768, 16, 1024), AIMS)
    for size in (4, 8, 32, 64):
        plain = dict.fromkeys(AIMS, 0.0)
        yield from step_rows(Step(device, QWEN_1_7B, 28, 16, 32_768, size, 1024), plain)


class Step:
    """Caches of all layers, and the graph of one step over them."""

    def __init__(
        self,
        device: str,
        heads: Heads,
        layers: int,
        batch: int,
        longest: int,
        size: int,
        budget: int,
    ) -> None:
        self.heads, self.layers, self.batch = heads, layers, batch
        self.size, self.budget = size, budget
        pages = longest // size
        noise = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise, device=device, dtype=torch.bfloat16)

        self.pools = normal(layers, 2, batch * pages, heads.kv, size, heads.dim)
        self.marks = normal(layers, batch * pages, heads.kv, 1, heads.dim)
        self.new = normal(layers, 2, batch, heads.kv, heads.dim)
        self.q = normal(layers, batch, heads.kv, heads.group, heads.dim)
        order = torch.randperm(batch * pages, generator=noise, device=device)
        self.table = order.view(batch, pages).int()
        self.lengths = torch.full((batch,), longest, dtype=torch.int32, device=device)
        self.edges = torch.zeros(1, dtype=torch.int32, device=device)
        self.budgets = torch.full((1,), budget, dtype=torch.int32, device=device)
        self.counters = torch.zeros(batch * heads.kv, dtype=torch.int32, device=device)

    def run(self) -> list[Tensor]:
        """One step; the outputs of all layers."""
        reserved = FIRST + LAST
        keep = kept_pages(self.lengths, self.edges, self.budgets, self.size, reserved)
        return [self.layer(i, keep) for i in range(self.layers)]

    def layer(self, i: int, keep: Tensor) -> Tensor:
        keys, values = self.pools[i]
        new_keys, new_values = self.new[i]
        table, lengths, q = self.table, self.lengths, self.q[i]
        new = (new_keys, new_values)
        more: dict[str, Any] = {"counters_R": self.counters}
        pages = None
        if i == 0:
            write_kv(keys, values, self.marks[i], *new, None, lengths, table)
        else:
            width = self.budget // self.size
            pools = (keys, values, self.marks[i])
            places = (table, lengths, keep)
            pages = write_and_choose(q, *pools, *new, *places, FIRST, LAST, width)
            more["keep_BK"] = keep[:, None]
        scale = self.heads.dim**-0.5
        return paged_decode(q, keys, values, table, pages, lengths, scale, **more).out_BKGD

    def bytes(self, length: int) -> int:
        """What a step must read: one dense layer, chosen pages and landmarks of the others."""
        token = self.batch * self.heads.kv * self.heads.dim * 2
        sparse = 2 * self.budget * token + length // self.size * token
        return 2 * length * token + (self.layers - 1) * sparse


def step_rows(step: Step, aims: dict[int, float]) -> Iterator[Row]:
    step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run()
    heads = step.heads
    for length, times in aims.items():
        step.lengths.fill_(length)
        count = step.bytes(length)
        floor = byte_floor(count)
        shape = f"batch {step.batch}, {step.layers} layers, {heads}, {length // 1024}k"
        what = f"page {step.size}, budget {step.budget}"
        aim = times * floor if times else None
        ms = replay_ms(graph)
        yield Row(OP, shape, what, ms, count, 0, floor, False, aim, "first layer dense")
