"""Sampling where the logits are: the rules of `rollout.sampling`, with settings a slot.

Nothing waits for the host and no shape depends on a value, so it can be part of a CUDA graph.

Shape suffixes: B slots, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.sampling import draw_tokens, tempered
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.sampling import Sampled


def draw(logits_BV: Tensor, slots: Slots, at: slice, truncates: bool) -> Sampled:
    """Draw a token for each of some slots.

    Args:
        logits_BV: as the output head gives them, in any dtype.
        at: the slots.
        truncates: False if no slot asks for top-k, top-p or min-p: their sort is left out.
    """
    temperature_B = slots["temperature"][at]
    key = (slots["seed"][at], slots["sample"][at], slots["length"][at])
    kept_BV = _truncate(tempered(logits_BV, temperature_B), slots, at) if truncates else None
    return Sampled(*draw_tokens(logits_BV, temperature_B, *key, slots["forced"][at], kept_BV))


def _truncate(logp_BV: Tensor, slots: Slots, at: slice) -> Tensor:
    """Log-probabilities after each slot's top-k, top-p and min-p, renormalised."""
    V = logp_BV.shape[-1]
    top_k, top_p, min_p = (slots[name][at, None] for name in ("top_k", "top_p", "min_p"))
    ordered, order = logp_BV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(V, device=logp_BV.device)
    drop = (top_k > 0) & (rank_V >= top_k)
    p = ordered.exp()
    drop = drop | ((top_p < 1) & (p.cumsum(dim=-1) - p >= top_p))
    drop = drop | (ordered < ordered[:, :1] + min_p.log())
    drop = drop & (rank_V > 0)
    removed = torch.zeros_like(drop).scatter_(1, order, drop)
    narrow = logp_BV.masked_fill(removed, float("-inf")).log_softmax(dim=-1)
    # a slot that asks for nothing keeps its numbers to the bit
    plain = ((top_k <= 0) | (top_k >= V)) & (top_p >= 1) & (min_p <= 0)
    return torch.where(plain, logp_BV, narrow)
