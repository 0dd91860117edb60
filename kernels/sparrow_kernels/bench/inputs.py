"""Inputs of the decode benches: a paged cache with holes in its order, and pages drawn afresh.

Shape suffixes: B sequences, K KV heads, G query heads of a KV head, N pages of the pool, S slots of
a page, D head dim, P pages of a sequence, W chosen pages.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Heads:
    """What of a model's shape decode attention sees."""

    model: str
    query: int
    kv: int
    dim: int

    @property
    def group(self) -> int:
        return self.query // self.kv

    def __str__(self) -> str:
        return f"{self.query}/{self.kv} heads, dim {self.dim}"


QWEN_1_7B = Heads("Qwen3-1.7B", 16, 8, 128)
QWEN_4B = Heads("Qwen3-4B and 8B", 32, 8, 128)
QWEN_14B = Heads("Qwen3-14B", 40, 8, 128)
SMOLLM2 = Heads("SmolLM2-135M", 9, 3, 64)


@dataclass(frozen=True)
class Cache:
    """One layer's pool, full sequences of one length, their pages in random order."""

    keys_NKSD: Tensor
    values_NKSD: Tensor
    table_BP: Tensor
    lengths_B: Tensor
    q_BKGD: Tensor
    scale: float

    @property
    def page_size(self) -> int:
        return self.keys_NKSD.shape[2]

    @property
    def rows(self) -> int:
        """KV heads of all sequences."""
        return self.q_BKGD.shape[0] * self.q_BKGD.shape[1]

    def kv_bytes(self, tokens: int) -> int:
        """Of so many tokens of every sequence and KV head, keys and values."""
        B, K, _, D = self.q_BKGD.shape
        return B * K * tokens * D * 2 * self.keys_NKSD.element_size()


def make_cache(
    device: str, heads: Heads, batch: int, length: int, page_size: int, seed: int = 0
) -> Cache:
    """A cache of `batch` sequences of `length` tokens, a multiple of the page size."""
    noise = torch.Generator(device).manual_seed(seed)
    pages = length // page_size
    shape = (batch * pages, heads.kv, page_size, heads.dim)

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=noise, device=device, dtype=torch.bfloat16)

    order = torch.randperm(batch * pages, generator=noise, device=device)
    return Cache(
        normal(*shape),
        normal(*shape),
        order.view(batch, pages).int(),
        torch.full((batch,), length, dtype=torch.int32, device=device),
        normal(batch, heads.kv, heads.group, heads.dim),
        heads.dim**-0.5,
    )


def draw_pages(cache: Cache, keep: int, seed: int) -> Tensor:
    """Random pages of every row, ascending, [B, K, keep] in int32."""
    B, K = cache.q_BKGD.shape[:2]
    noise = torch.Generator(cache.table_BP.device).manual_seed(seed)
    shape = (B * K, cache.table_BP.shape[1])
    marks = torch.rand(shape, generator=noise, device=cache.table_BP.device)
    return marks.topk(keep, dim=1).indices.sort(dim=1).values.int().view(B, K, keep)
