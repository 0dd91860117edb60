"""Sampling where the logits are: the rules of `rollout.sampling`, with settings a slot.

Nothing waits for the host and no shape depends on a value, so it can be part of a CUDA graph.

Shape suffixes: B slots, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.sampling import Sampled

LONG, BLOCK = 4096, 256
"""Vocabularies longer than LONG are summed in blocks."""

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift to the right as if the numbers had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64; products of int64 wrap as those of uint64 do."""
    x = (x ^ _shift(x, 30)) * _FIRST
    x = (x ^ _shift(x, 27)) * _SECOND
    return x ^ _shift(x, 31)


def uniform_noise(seed_B: Tensor, sample_B: Tensor, position_B: Tensor) -> Tensor:
    """The numbers of `rollout.sampling.uniform_noise`, to the bit; int64 in, float64 out."""
    state = _mix(seed_B + _GOLDEN)
    state = _mix((state ^ sample_B) + _GOLDEN)
    state = _mix((state ^ position_B) + _GOLDEN)
    return _shift(state, 11).double() * 2.0**-53


def draw(logits_BV: Tensor, slots: Slots, at: slice, truncates: bool) -> Sampled:
    """Draw a token for each of some slots.

    Args:
        logits_BV: float32 or better.
        at: the slots.
        truncates: False if no slot asks for top-k, top-p or min-p: their sort is left out.
    """
    temperature_B1 = slots["temperature"][at, None]
    greedy_B = temperature_B1[:, 0] == 0
    scaled_BV = logits_BV / temperature_B1.masked_fill(greedy_B[:, None], 1.0)
    logp_BV = scaled_BV.log_softmax(dim=-1)
    kept_BV = _truncate(logp_BV, slots, at) if truncates else logp_BV
    position_B = slots["length"][at].long()
    noise_B = uniform_noise(slots["seed"][at], slots["sample"][at], position_B)
    pick_B = _invert(kept_BV.double().exp(), noise_B)
    pick_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), pick_B)
    forced_B = slots["forced"][at]
    given_B = forced_B >= 0
    pick_B = torch.where(given_B, forced_B, pick_B)
    raw_B = logp_BV.gather(1, pick_B[:, None]).squeeze(1)
    logp_B = raw_B if not truncates else kept_BV.gather(1, pick_B[:, None]).squeeze(1)
    logp_B = logp_B.masked_fill(greedy_B, 0.0)
    # a token that was given was not drawn from any narrower distribution
    return Sampled(pick_B, torch.where(given_B, raw_B, logp_B), raw_B)


def _invert(p_BV: Tensor, noise_B: Tensor) -> Tensor:
    """The token at which the running sum of weights passes the noise's share of their total."""
    if p_BV.shape[1] <= LONG:
        cdf_BV = p_BV.cumsum(dim=-1)
        # scaled by the real total, so rounding can never point past the last token
        target_B1 = noise_B[:, None] * cdf_BV[:, -1:]
        return torch.searchsorted(cdf_BV, target_B1, right=True).squeeze(1)
    # one long running sum has little to do at once: first a block of tokens, then one in it
    blocks = F.pad(p_BV, (0, -p_BV.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
    cdf_BN = blocks.sum(dim=-1).cumsum(dim=-1)
    target_B1 = noise_B[:, None] * cdf_BN[:, -1:]
    block_B1 = torch.searchsorted(cdf_BN, target_B1, right=True).minimum(_last(cdf_BN))
    inner = blocks.gather(1, block_B1[..., None].expand(-1, -1, BLOCK)).squeeze(1).cumsum(dim=-1)
    rest_B1 = (target_B1 - F.pad(cdf_BN, (1, 0)).gather(1, block_B1)).clamp(min=0)
    token_B1 = torch.searchsorted(inner, rest_B1, right=True).minimum(_last(inner))
    return (block_B1 * BLOCK + token_B1).squeeze(1)


def _last(cdf_BV: Tensor) -> Tensor:
    """The last place at which a running sum rises, [B, 1]."""
    return (cdf_BV < cdf_BV[:, -1:]).sum(dim=-1, keepdim=True)


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
