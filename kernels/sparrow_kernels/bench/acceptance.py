"""Fused acceptance: stored logits, recompute, known log-sum-exps, and plain torch as the peer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparrow_kernels.acceptance import acceptance_from_hidden, naive, top_k_from_hidden
from sparrow_kernels.bench.row import Row, flop_floor
from sparrow_kernels.bench.timing import median_ms


@dataclass(frozen=True)
class Inputs:
    """Hidden states of both sides, bfloat16, near each other; a head; sampled tokens."""

    sparse: Tensor
    dense: Tensor
    head: Tensor
    tokens: Tensor

    @classmethod
    def make(cls, device: str, T: int, M: int, V: int) -> Inputs:
        """Random numbers; logits of standard deviation 2."""
        noise = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise, device=device)

        sparse = normal(T, M)
        dense = sparse + 0.1 * normal(T, M)
        head = torch.empty((V, M), dtype=torch.bfloat16, device=device)
        for part in head.split(16_384):
            part.copy_(normal(len(part), M) * (2 * M**-0.5))
        tokens = torch.randint(0, V, (T,), generator=noise, device=device)
        return cls(sparse.bfloat16(), dense.bfloat16(), head, tokens)


def rows(device: str, quick: bool) -> Iterator[Row]:
    """The table's shape, then the heads of other models with ours alone."""
    if quick:
        yield from _table(Inputs.make(device, 512, 256, 8192), "512 tokens, head 256 x 8,192")
        return
    name = "8,192 tokens, head {:,} x {:,}"
    yield from _table(Inputs.make(device, 8192, 2048, 151_936), name.format(2048, 151_936), 33.0)
    for M, V, model in ((2560, 151_936, "Qwen3-4B"), (576, 49_152, "SmolLM2")):
        x = Inputs.make(device, 8192, M, V)
        yield _row(x, name.format(M, V), "stored logits", 2, partial(_ours, x), note=model)


def _table(x: Inputs, shape: str, aim: float | None = None) -> Iterator[Row]:
    lse = [_lse(side, x.head) for side in (x.sparse, x.dense)]
    known = {"lse_sparse_T": lse[0], "lse_dense_T": lse[1]}
    yield _row(x, shape, "stored logits", 2, partial(_ours, x, form="chunks"), aim)
    yield _row(
        x, shape, "stored logits, both lse known", 2, partial(_ours, x, form="chunks", **known)
    )
    yield _row(x, shape, "recompute", 4, partial(_ours, x, form="recompute"), aim)
    again = partial(_ours, x, form="recompute", **known)
    yield _row(x, shape, "recompute, both lse known", 2, again)
    args = (x.sparse, x.dense, x.head)
    best = partial(top_k_from_hidden, *args, 20, 1.0)
    yield _row(x, shape, "top-k estimator, k = 20", 2, best)

    def products() -> None:
        for start in range(0, len(x.tokens), 512):
            both = torch.cat([side[start : start + 512] for side in (x.sparse, x.dense)])
            torch.mm(both, x.head.T, out_dtype=torch.float32)

    yield _row(x, shape, "two products to float32 alone", 2, products, peer=True)
    plain = partial(naive.acceptance_from_hidden, *args, x.tokens, 1.0, chunk=512)
    yield _row(x, shape, "plain torch, bf16 logits", 2, plain, peer=True)


def _ours(x: Inputs, **settings: Any) -> None:
    acceptance_from_hidden(x.sparse, x.dense, x.head, x.tokens, 1.0, **settings)


def _lse(side: Tensor, head: Tensor) -> Tensor:
    parts = [torch.mm(part, head.T).float().logsumexp(-1) for part in side.split(512)]
    return torch.cat(parts)


def _row(
    x: Inputs,
    shape: str,
    variant: str,
    products: int,
    call: Callable[[], object],
    aim: float | None = None,
    peer: bool = False,
    note: str = "",
) -> Row:
    """Time a call, and note what memory it takes beyond its inputs.

    Args:
        products: matrix products a token, whose FLOPs are the floor.
    """
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    extra = (torch.cuda.max_memory_allocated() - before) / 1e6
    (T, M), V = x.sparse.shape, len(x.head)
    flops = products * 2 * T * M * V
    return Row(
        "acceptance",
        shape,
        variant,
        median_ms([call], repeats=7, graph=False),
        bytes=0,
        flops=flops,
        floor_ms=flop_floor(flops),
        peer=peer,
        aim_ms=aim,
        note=", ".join(part for part in (note, f"{extra:.0f} MB extra") if part),
    )
