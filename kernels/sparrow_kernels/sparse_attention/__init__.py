"""Sparse attention for training: full sequences whose every query attends to its own pages.

It is what the rollout computes token by token, with gradients. `choose_pages` says which pages,
under the rollout's rule; `sparse_attention` attends to them. On a CPU the plain definition runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor

from sparrow_kernels.dispatch import Backend, checks_values, interpreted, pick_backend
from sparrow_kernels.sparse_attention import naive
from sparrow_kernels.sparse_attention.rule import (
    PageBits,
    PageRule,
    check_choice,
    check_sequences,
)

__all__ = ["PageBits", "PageRule", "choose_pages", "sparse_attention"]


def choose_pages(
    q_LHD: Tensor,
    k_LKD: Tensor,
    offsets: Sequence[int],
    prompts: Sequence[int],
    rule: PageRule,
    *,
    backend: Backend | None = None,
) -> PageBits:
    """Let every token of sequences that lie end to end choose its pages, as decode would.

    Args:
        q_LHD, k_LKD: queries and keys after norm and rotation; query head h reads KV head
            h // (H // K).
        offsets: first token of each sequence, and the end of the last.
        prompts: tokens of each sequence's prompt, whose rows attend to all before them.
        backend: the plain definition (`torch`) or the kernels; None goes by the device.

    Returns:
        The choice, without gradients. A landmark or query that is NaN scores above all numbers.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit; a rule that ends before the longest
            sequence.
    """
    _check(q_LHD, k_LKD, offsets)
    if len(prompts) != len(offsets) - 1:
        raise ValueError(f"{len(prompts)} prompts but {len(offsets) - 1} sequences")
    longest = max(b - a for a, b in pairwise(offsets))
    if len(rule.keep_N) <= longest:
        raise ValueError(
            f"the rule ends at length {len(rule.keep_N) - 1}, the longest sequence has {longest}"
        )
    if pick_backend(q_LHD, backend) == "torch":
        with torch.no_grad():
            chosen = naive.chosen_pages(q_LHD, k_LKD, offsets, prompts, rule)
        return PageBits.pack(chosen, rule.page_size)
    _check_interpreted(q_LHD)
    from sparrow_kernels.sparse_attention.choice import choose

    return choose(q_LHD, k_LKD, offsets, prompts, rule)


def sparse_attention(
    q_LHD: Tensor,
    k_LKD: Tensor,
    v_LKD: Tensor,
    pages: PageBits,
    offsets: Sequence[int],
    scale: float,
    *,
    backend: Backend | None = None,
    debug: bool | None = None,
) -> Tensor:
    """Attend from every token to the tokens, up to itself, of its chosen pages.

    Args:
        pages: the choice; `pages.page_size` must be a power of 2 for the kernels.
        offsets: first token of each sequence, and the end of the last.
        scale: factor on q.k, usually D ** -0.5.
        backend: the plain definition (`torch`) or the kernels; None goes by the device.
        debug: look at the choice first, which waits for the GPU; None asks SPARROW_DEBUG.

    Keys and values must be finite: what a query does not see still enters products with weight 0.

    Returns:
        [L, H, D] in the dtype of q, with gradients for q, k and v; softmax in float32 or better.
        The kernels add in a fixed order: equal inputs give equal outputs and gradients.

    Raises:
        ValueError: shapes, strides, dtypes or devices that do not fit; in debug mode a token that
            does not attend to its own page, or does to a later one.
    """
    _check(q_LHD, k_LKD, offsets)
    if v_LKD.shape != k_LKD.shape or v_LKD.dtype != k_LKD.dtype:
        raise ValueError(
            f"values must be like keys, found {tuple(v_LKD.shape)} of {v_LKD.dtype} and "
            f"{tuple(k_LKD.shape)} of {k_LKD.dtype}"
        )
    longest = max(b - a for a, b in pairwise(offsets))
    words = tuple(pages.words_KWL.shape)
    if (words[0], words[2]) != (k_LKD.shape[1], len(q_LHD)) or words[1] * 32 * (
        pages.page_size
    ) < longest:
        raise ValueError(
            f"page bits {words} of page size {pages.page_size} do not fit keys "
            f"{tuple(k_LKD.shape)} in sequences of up to {longest}"
        )
    if checks_values(debug):
        check_choice(pages, offsets)
    if pick_backend(q_LHD, backend) == "torch":
        chosen = pages.unpack()
        return naive.sparse_attention(q_LHD, k_LKD, v_LKD, chosen, offsets, pages.page_size, scale)
    _check_interpreted(q_LHD)
    size = pages.page_size
    if size & (size - 1):
        raise ValueError(f"the kernels take page sizes that are a power of 2, not {size}")
    for name, x in (("q_LHD", q_LHD), ("k_LKD", k_LKD), ("v_LKD", v_LKD)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous, found strides {x.stride()}")
    given = (pages.words_KWL, tuple(offsets), size, scale)
    out = _Attention.apply(q_LHD, k_LKD, v_LKD, *given)  # type: ignore[no-untyped-call]
    return cast(Tensor, out)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        words: Tensor,
        offsets: tuple[int, ...],
        page_size: int,
        scale: float,
    ) -> Tensor:
        from sparrow_kernels.sparse_attention import triton as kernels
        from sparrow_kernels.sparse_attention.configs import config_for

        config = config_for(q.device, q.dtype, q.shape[-1])
        out, lse = kernels.forward(q, k, v, words, offsets, page_size, scale, config)
        ctx.save_for_backward(q, k, v, words, out, lse)
        ctx.offsets, ctx.page_size, ctx.scale, ctx.config = offsets, page_size, scale, config
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from sparrow_kernels.sparse_attention import triton as kernels

        q, k, v, words, out, lse = ctx.saved_tensors
        fixed = (ctx.offsets, ctx.page_size, ctx.scale, ctx.config)
        made = kernels.backward(q, k, v, words, *fixed, out, lse, grads[0].contiguous())
        return *made, None, None, None, None


def _check(q_LHD: Tensor, k_LKD: Tensor, offsets: Sequence[int]) -> None:
    q, k = tuple(q_LHD.shape), tuple(k_LKD.shape)
    if len(q) != 3 or len(k) != 3 or (q[0], q[2]) != (k[0], k[2]) or not k[1] or q[1] % k[1]:
        raise ValueError(
            f"queries [L, H, D] and keys [L, K, D] need equal L and D, and H a multiple of K; "
            f"found {q} and {k}"
        )
    if (q_LHD.dtype, q_LHD.device) != (k_LKD.dtype, k_LKD.device):
        raise ValueError(
            f"queries are {q_LHD.dtype} on {q_LHD.device}, keys {k_LKD.dtype} on {k_LKD.device}"
        )
    check_sequences(q[0], offsets)


def _check_interpreted(x: Tensor) -> None:
    if interpreted() and x.dtype != torch.float32:
        raise ValueError(f"in Triton's interpreter the kernels take float32, not {x.dtype}")
