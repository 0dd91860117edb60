"""The definition of a draw from logits, in plain torch: noise keyed by the token, inverted.

Nothing here waits for a device and no shape depends on a value.

Shape suffixes: B sequences, V vocabulary, N blocks of it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LONG, BLOCK = 4096, 256
"""Vocabularies longer than LONG are summed in blocks."""

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
"""Constants of SplitMix64."""


class Drawn(NamedTuple):
    """One token a sequence, each [B]."""

    tokens: Tensor
    logp: Tensor
    """Under the distribution drawn from; 0 where the largest was taken."""
    raw_logp: Tensor
    """Under the whole distribution at the temperature."""


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift to the right as if the numbers had no sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of SplitMix64; products of int64 wrap as those of uint64 do."""
    x = (x ^ _shift(x, 30)) * (FIRST - 2**64)
    x = (x ^ _shift(x, 27)) * (SECOND - 2**64)
    return x ^ _shift(x, 31)


def uniform_noise(seed_B: Tensor, sample_B: Tensor, position_B: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) keyed by (seed, sample, position); int64 in, float64 out."""
    golden = GOLDEN - 2**64
    state = _mix(seed_B + golden)
    state = _mix((state ^ sample_B) + golden)
    state = _mix((state ^ position_B) + golden)
    return _shift(state, 11).double() * 2.0**-53


def invert(p_BV: Tensor, noise_B: Tensor) -> Tensor:
    """The token at which the running sum of weights passes the noise's share of their total.

    Args:
        p_BV: float64, not all 0.
    """
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


def tempered(logits_BV: Tensor, temperature_B: Tensor) -> Tensor:
    """Log-probabilities at each temperature, 1 where it is 0; float32 or better."""
    wide = logits_BV if logits_BV.dtype == torch.float64 else logits_BV.float()
    at_B1 = temperature_B.masked_fill(temperature_B == 0, 1.0)[:, None]
    return (wide / at_B1.to(wide.dtype)).log_softmax(dim=-1)


def draw_tokens(
    logits_BV: Tensor,
    temperature_B: Tensor,
    seed_B: Tensor,
    sample_B: Tensor,
    position_B: Tensor,
    forced_B: Tensor,
    kept_BV: Tensor | None = None,
) -> Drawn:
    """Draw a token of each row.

    Args:
        logits_BV: any floating dtype.
        temperature_B: 0 takes the largest logit, the first among equals.
        seed_B, sample_B, position_B: key of each row's noise; int64.
        forced_B: the token to take instead; -1 draws. Its log-probability is the raw one.
        kept_BV: log-probabilities of a narrower distribution to draw from. None: the whole one.
    """
    logp_BV = tempered(logits_BV, temperature_B)
    if kept_BV is None:
        kept_BV = logp_BV
    noise_B = uniform_noise(seed_B, sample_B, position_B)
    greedy_B, given_B = temperature_B == 0, forced_B >= 0
    pick_B = invert(kept_BV.double().exp(), noise_B)
    pick_B = torch.where(greedy_B, logits_BV.argmax(dim=-1), pick_B)
    pick_B = torch.where(given_B, forced_B, pick_B)
    raw_B = logp_BV.gather(1, pick_B[:, None]).squeeze(1)
    logp_B = kept_BV.gather(1, pick_B[:, None]).squeeze(1).masked_fill(greedy_B, 0.0)
    # a token that was given was not drawn from any narrower distribution
    return Drawn(pick_B, torch.where(given_B, raw_B, logp_B), raw_B)
