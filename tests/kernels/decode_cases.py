"""One call of paged decode: a pool of pages, a page table with holes, chosen pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend
from sparrow_kernels.paged_decode import Attended, paged_decode


@dataclass
class Case:
    """Arguments of one call, and the pool's rows that the page tables name."""

    q_BKGD: Tensor
    keys_NKSD: Tensor
    values_NKSD: Tensor
    table_BP: Tensor
    pages_BKW: Tensor | None
    lengths_B: Tensor
    scale: float

    def call(self, backend: Backend | None = None, keep_BK: Tensor | None = None) -> Attended:
        return paged_decode(
            self.q_BKGD,
            self.keys_NKSD,
            self.values_NKSD,
            self.table_BP,
            self.pages_BKW,
            self.lengths_B,
            self.scale,
            keep_BK=keep_BK,
            backend=backend,
        )

    def run(self, backend: Backend | None = None) -> Tensor:
        return self.call(backend).out_BKGD

    def unnamed_rows(self) -> list[int]:
        """Pool rows that no page table names."""
        named = set(self.table_BP.flatten().tolist())
        return [n for n in range(len(self.keys_NKSD)) if n not in named]

    def to(self, device: str, dtype: torch.dtype) -> Case:
        """The same numbers elsewhere, rounded to a dtype; page numbers in int32."""
        return Case(
            *(x.to(device, dtype) for x in (self.q_BKGD, self.keys_NKSD, self.values_NKSD)),
            self.table_BP.to(device, torch.int32),
            None if self.pages_BKW is None else self.pages_BKW.to(device, torch.int32),
            self.lengths_B.to(device, torch.int32),
            self.scale,
        )

    def wide(self) -> Case:
        """The same on the CPU in float64."""
        return self.to("cpu", torch.float64)

    def dense(self) -> Case:
        """Every page instead of chosen ones."""
        return replace(self, pages_BKW=None)


def make_case(
    B: int,
    K: int,
    G: int,
    S: int,
    D: int,
    lengths: list[int],
    keep: list[list[set[int]]],
    spare: int,
    seed: int,
) -> Case:
    """`keep[b][k]` are pages of a head; the sequence's last is added. A length of 0: empty slot."""
    noise = torch.Generator().manual_seed(seed)
    counts = [math.ceil(n / S) for n in lengths]
    P = max(counts + [1])
    N = max(sum(counts) + spare, 1)
    order = torch.randperm(N, generator=noise).tolist()
    table_BP = torch.empty((B, P), dtype=torch.long)
    for b in range(B):
        own = [order.pop() for _ in range(counts[b])]
        table_BP[b] = torch.tensor(own + (own[:1] or [0]) * (P - counts[b]))
    kept = [
        [sorted({p % c for p in pages} | {c - 1}) if c else [] for pages in keep[b]]
        for b, c in enumerate(counts)
    ]
    W = max(1, *(len(pages) for heads in kept for pages in heads))
    pages_BKW = torch.tensor([[pages + [P] * (W - len(pages)) for pages in h] for h in kept])

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise, dtype=torch.float64)

    return Case(
        normal(B, K, G, D),
        normal(N, K, S, D),
        normal(N, K, S, D),
        table_BP,
        pages_BKW,
        torch.tensor(lengths),
        D**-0.5,
    )
