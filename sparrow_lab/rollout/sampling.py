"""Sampling whose noise belongs to the token, not to the batch.

One uniform number per (seed, sample, position), from a counter-based hash: a sample draws the
same noise alone, in any batch, after any restart. The token is found by inverting the distribution
function. The log-probability reported is that of the distribution sampled from; the raw one, of the
untruncated distribution at the temperature, stands beside it.

Shape suffixes: B sequences, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.config.schema import RolloutConfig

Floats = npt.NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every input bit moves every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform_noise(
    seed: int, samples: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
) -> Floats:
    """Uniform numbers in [0, 1) keyed by (seed, sample, position), float64, same shape."""
    with np.errstate(over="ignore"):
        state = _mix(np.full(samples.shape, seed, np.uint64) + _GOLDEN)
        state = _mix((state ^ samples.astype(np.uint64)) + _GOLDEN)
        state = _mix((state ^ positions.astype(np.uint64)) + _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


class Sampled(NamedTuple):
    """One token a sequence, each [B]."""

    tokens: Tensor
    logp: Tensor
    """Under the distribution sampled from (after top-p, top-k and min-p)."""
    raw_logp: Tensor
    """Under the untruncated distribution at the temperature."""


def sample(logits_BV: Tensor, rollout: RolloutConfig, noise_B: Tensor | Floats) -> Sampled:
    """Draw from the logits; at temperature 0 take the largest (log-probability 0).

    Logits are float32 or better; noise is float64.
    """
    if rollout.temperature == 0:
        tokens = logits_BV.argmax(dim=-1)
        raw = logits_BV.log_softmax(dim=-1).gather(1, tokens[:, None]).squeeze(1)
        return Sampled(tokens, torch.zeros_like(raw), raw)
    if rollout.temperature != 1:
        logits_BV = logits_BV / rollout.temperature
    logp_BV = logits_BV.log_softmax(dim=-1)
    kept_BV = truncate(logp_BV, rollout)
    cdf_BV = kept_BV.double().exp().cumsum(dim=-1)
    # scaled by the real total, so rounding can never point past the last token
    noise_B = torch.as_tensor(noise_B, device=cdf_BV.device)
    target_B1 = noise_B.unsqueeze(1) * cdf_BV[:, -1:]
    pick = torch.searchsorted(cdf_BV, target_B1, right=True)
    raw = logp_BV.gather(1, pick).squeeze(1)
    logp = raw if kept_BV is logp_BV else kept_BV.gather(1, pick).squeeze(1)
    return Sampled(pick.squeeze(1), logp, raw)


def truncate(logp_BV: Tensor, rollout: RolloutConfig) -> Tensor:
    """Log-probabilities after top-k, top-p and min-p, renormalised; -inf where removed.

    The most likely token always stays. Without truncation the input comes back as it is.
    """
    V = logp_BV.shape[-1]
    top_k = rollout.top_k if 0 < rollout.top_k < V else 0
    if not top_k and rollout.top_p >= 1 and rollout.min_p <= 0:
        return logp_BV
    ordered, order = logp_BV.sort(dim=-1, descending=True, stable=True)
    drop = torch.zeros_like(ordered, dtype=torch.bool)
    if top_k:
        drop[:, top_k:] = True
    if rollout.top_p < 1:
        p = ordered.exp()
        drop |= p.cumsum(dim=-1) - p >= rollout.top_p
    if rollout.min_p > 0:
        drop |= ordered < ordered[:, :1] + float(np.log(rollout.min_p))
    drop[:, 0] = False
    removed = torch.zeros_like(drop).scatter_(1, order, drop)
    return logp_BV.masked_fill(removed, float("-inf")).log_softmax(dim=-1)
