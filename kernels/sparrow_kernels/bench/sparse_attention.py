"""Sparse training attention, forward and backward, beside torch's dense attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparrow_kernels.bench.row import Row, flop_floor
from sparrow_kernels.bench.timing import median_ms
from sparrow_kernels.sparse_attention import (
    PageBits,
    PageRule,
    choose_pages,
    sparse_attention,
)

PROMPT = 512
PASSES = 3.5
"""Forward and backward, in forward passes: two products and then five."""


@dataclass(frozen=True)
class Shape:
    """One sequence of one layer."""

    tokens: int
    heads: int
    kv_heads: int
    dim: int
    page_size: int
    budget: int

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads} heads, dim {self.dim}"
        return f"{self.tokens:,} tokens, {heads}, page {self.page_size}, budget {self.budget:,}"

    def rule(self) -> PageRule:
        keep = torch.full((self.tokens + 1,), self.budget // self.page_size)
        return PageRule(self.page_size, keep)

    def flops(self, seen: int) -> int:
        """Of forward and backward over so many (query, key) pairs a head."""
        return int(PASSES * 4 * self.heads * self.dim * seen)

    def seen(self) -> int:
        """Pairs that the rule lets a head see, up to partly filled pages."""
        dense = min(self.budget, self.tokens)
        return dense * (dense + 1) // 2 + (self.tokens - dense) * self.budget


def rows(device: str, quick: bool) -> Iterator[Row]:
    """The table's shape with its peers, then other budgets, page sizes and heads."""
    if quick:
        yield from _beside_peers(Shape(1024, 4, 2, 64, 16, 256), device, aim=False)
        return
    yield from _beside_peers(Shape(16_384, 16, 8, 128, 16, 2048), device, aim=True)
    for budget in (1024, 4096):
        yield from _ours(Shape(16_384, 16, 8, 128, 16, budget), device)
    for page_size in (4, 8, 32, 64):
        yield from _ours(Shape(16_384, 16, 8, 128, page_size, 2048), device)
    for heads, kv_heads, dim in ((32, 8, 128), (40, 8, 128), (9, 3, 64)):
        yield from _beside_peers(Shape(16_384, heads, kv_heads, dim, 16, 2048), device, aim=True)


class _Inputs:
    """Random bfloat16 queries, keys and values, and a gradient of the output."""

    def __init__(self, shape: Shape, device: str) -> None:
        noise = torch.Generator(device).manual_seed(0)

        def normal(heads: int) -> Tensor:
            size = (shape.tokens, heads, shape.dim)
            return torch.randn(size, generator=noise, device=device).bfloat16()

        self.grad = normal(shape.heads)
        self.qkv = [normal(n) for n in (shape.heads, shape.kv_heads, shape.kv_heads)]
        for x in self.qkv:
            x.requires_grad_()

    def both(self, attend: Callable[[], Tensor]) -> None:
        """Forward and backward."""
        torch.autograd.grad(attend(), self.qkv, self.grad)


def _beside_peers(shape: Shape, device: str, aim: bool) -> Iterator[Row]:
    x = _Inputs(shape, device)
    causal = shape.flops(shape.tokens * (shape.tokens + 1) // 2)
    peers: list[Row] = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        ms = median_ms([partial(x.both, partial(_dense, x.qkv, backend))], graph=False)
        name = f"dense, SDPA {backend.name.split('_')[0].lower()}"
        peers.append(_row(shape, name, ms, causal, peer=True))
        yield peers[-1]
    yield from _ours(shape, device, x, 3 * peers[0].ms if aim else None)


def _ours(
    shape: Shape, device: str, x: _Inputs | None = None, aim_ms: float | None = None
) -> Iterator[Row]:
    x = _Inputs(shape, device) if x is None else x
    q, k, v = x.qkv
    offsets, prompts, rule = [0, shape.tokens], [PROMPT], shape.rule()
    scale, flops = shape.dim**-0.5, shape.flops(shape.seen())
    tiles = flop_floor(shape.flops(shape.tokens * (shape.tokens + 1) // 2))
    note = f"floor of its dense tiles {tiles:.1f} ms"

    def choose() -> PageBits:
        return choose_pages(q, k, offsets, prompts, rule)

    pages = choose()
    ms = median_ms([choose], graph=False)
    pairs = shape.tokens * (shape.tokens + 1) // 2 // shape.page_size
    scored = 2 * shape.kv_heads * shape.dim * pairs
    yield _row(shape, "choice of pages", ms, scored, note="scores in float32, the floor in bf16")
    attend = partial(sparse_attention, q, k, v, pages, offsets, scale)
    ms = median_ms([partial(x.both, attend)], graph=False)
    yield _row(shape, "forward + backward, pages given", ms, flops, note=note)
    with torch.no_grad():
        ms = median_ms([attend], graph=False)
    yield _row(shape, "forward, pages given", ms, int(flops / PASSES))

    def all_of_it() -> Tensor:
        return sparse_attention(q, k, v, choose(), offsets, scale)

    ms = median_ms([partial(x.both, all_of_it)], graph=False)
    yield _row(shape, "choice, forward + backward", ms, flops, aim_ms, note=note)


def _dense(qkv: list[Tensor], backend: SDPBackend) -> Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in qkv)
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


def _row(
    shape: Shape, variant: str, ms: float, flops: int, aim_ms: float | None = None,
    peer: bool = False, note: str = "",
) -> Row:  # fmt: skip
    return Row(
        "sparse_attention",
        str(shape),
        variant,
        ms,
        bytes=0,
        flops=flops,
        floor_ms=flop_floor(flops),
        peer=peer,
        aim_ms=aim_ms,
        note=note,
    )
