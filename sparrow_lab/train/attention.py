"""Attention of a packed stream, with gradients: blocks of sequences that see nothing of each other.

Queries, keys and values are gathered head by head into the order that products want, so that
nothing is copied again. Shape suffixes: L tokens of the stream, N sequences of a block, T queries
and E keys of the longest of them, H query heads, K KV heads, G query heads of a KV head,
X = N * K, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.train.packing import Block, PackedRows

MOST_WEIGHTS = 1 << 24
"""Attention weights of a block that are kept for the backward pass (64 MB in float32); a block of
more is left to torch's attention, which makes them twice instead. On a GPU that one may add its
gradients in another order each time: bits are then the same only from blocks within this."""


@dataclass(frozen=True)
class HeadOrder:
    """Where each head of each query and key of all blocks stands.

    Attributes:
        query: index into [L * H], block by block in the order [N, K, G, T].
        key: index into [L * 2 * K], block by block in the order [2, N, K, E].
        place: index into the queries, in the order [L, H].
    """

    query: Tensor
    key: Tensor
    place: Tensor

    @classmethod
    def of(cls, rows: PackedRows, heads: int, kv_heads: int) -> HeadOrder:
        """The order for a model's heads."""
        query, key, place = [], [], torch.zeros((len(rows.tokens_L), heads), dtype=torch.long)
        place = place.to(rows.tokens_L.device)
        head_H = torch.arange(heads, device=place.device)
        pair_2K = torch.arange(2 * kv_heads, device=place.device).view(2, 1, kv_heads, 1)
        done = 0
        for block in rows.blocks:
            N, T = block.query_NT.shape
            query.append((block.query_NT[:, None] * heads + head_H[:, None]).reshape(-1))
            key.append((block.key_NE[None, :, None] * 2 * kv_heads + pair_2K).reshape(-1))
            n, t = block.real_NT.nonzero(as_tuple=True)
            at = done + (n[:, None] * heads + head_H) * T + t[:, None]
            place[block.query_NT[n, t]] = at
            done += N * heads * T
        return cls(torch.cat(query), torch.cat(key), place.reshape(-1))


def packed_attention(
    q_LHD: Tensor, kv_LHD: Tensor, rows: PackedRows, order: HeadOrder, scale: float
) -> Tensor:
    """[L, H * D]: what each token attends to.

    Args:
        kv_LHD: the K keys and then the K values of each token.
    """
    L, H, D = q_LHD.shape
    K = kv_LHD.shape[1] // 2
    blocks = rows.blocks
    queries = _gather(q_LHD.reshape(L * H, D), order.query)
    keys = _gather(kv_LHD.reshape(L * 2 * K, D), order.key)
    outs = []
    for block, q, kv in zip(
        blocks,
        queries.split([H * block.query_NT.numel() for block in blocks]),
        keys.split([2 * K * block.key_NE.numel() for block in blocks]),
        strict=True,
    ):
        N, E = block.key_NE.shape
        k_XED, v_XED = kv.view(2, N * K, E, D).unbind(0)
        outs.append(_attend(q.view(N * K, -1, D), k_XED, v_XED, block, scale).reshape(-1, D))
    return _gather(torch.cat(outs), order.place).view(L, H * D)


def _attend(q_XQD: Tensor, k_XED: Tensor, v_XED: Tensor, block: Block, scale: float) -> Tensor:
    """[X, Q, D], where the Q = G * T queries of a KV head stand head by head."""
    X, Q, _ = q_XQD.shape
    N, E = block.key_NE.shape
    if X * Q * E <= MOST_WEIGHTS:
        out = _Weighted.apply(q_XQD, k_XED, v_XED, block.bias_NTE, scale)  # type: ignore[no-untyped-call]
        return cast(Tensor, out)
    G = Q // block.query_NT.shape[1]
    ahead = E - block.bias_NTE.shape[2]
    bias = F.pad(block.bias_NTE, (ahead, 0))[:, None].repeat(1, 1, G, 1).to(q_XQD.dtype)
    q, k, v = (x.unflatten(0, (N, -1)) for x in (q_XQD, k_XED, v_XED))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale).flatten(0, 1)


class _Weighted(torch.autograd.Function):
    """Softmax attention that keeps its weights: faster than torch's on a CPU."""

    @staticmethod
    def forward(
        ctx: Any, q_XQD: Tensor, k_XED: Tensor, v_XED: Tensor, bias_NTE: Tensor, scale: float
    ) -> Tensor:
        scores = _product(q_XQD, k_XED.transpose(1, 2), scale)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        # the first keys may be seen by all: the bias is that of the last ones
        N, T, last = bias_NTE.shape
        scores.view(N, -1, T, scores.shape[-1])[..., -last:].add_(bias_NTE[:, None])
        weights_XQE = scores.softmax(dim=-1).to(v_XED.dtype)
        ctx.save_for_backward(q_XQD, k_XED, v_XED, weights_XQE)
        ctx.scale = scale
        return torch.bmm(weights_XQE, v_XED)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        q, k, v, weights = ctx.saved_tensors
        of_v = torch.bmm(weights.transpose(1, 2), grad)
        of_weights = torch.bmm(grad, v.transpose(1, 2))
        of_scores = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        of_q = _product(of_scores, k, ctx.scale)
        of_k = _product(of_scores.transpose(1, 2), q, ctx.scale)
        return of_q, of_k, of_v, None, None


def _product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(a.new_empty(()), a, b, beta=0, alpha=scale)


class _Gather(torch.autograd.Function):
    """Rows of a matrix by index; the gradient is added up row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (grad,) = grads
        (index,) = ctx.saved_tensors
        return add_rows(grad.new_zeros((ctx.rows, *grad.shape[1:])), index, grad), None


def add_rows(x: Tensor, index: Tensor, rows: Tensor) -> Tensor:
    """Add rows to those of `x` that the index names, in place, and always in the same order.

    A resumed run has to end in the same bits. `index_add_` adds as its threads come on a GPU, where
    `index_put_` sorts by index first; on a CPU it is `index_add_` that keeps the order.
    """
    if x.is_cuda:
        return x.index_put_((index,), rows, accumulate=True)
    return x.index_add_(0, index, rows)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return cast(Tensor, _Gather.apply(x, index))  # type: ignore[no-untyped-call]
