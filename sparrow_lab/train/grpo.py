"""The GRPO objective on sparse rollouts (paper section 4).

Samples come from the sparse actor, the update is of the dense policy. The gap between the two is
corrected by a truncated importance weight (TIS): min(p_dense / p_rollout, cap) of the sampled
token, detached, multiplied after the clip. Shape suffixes: N samples, X generated tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow_lab.config.schema import TrainConfig


def group_advantages(
    rewards_N: Tensor, samples: int, divide_by_std: bool, eps: float = 1e-6
) -> tuple[Tensor, float]:
    """Advantage of each sample within its group of `samples`.

    Groups of equal rewards get exactly 0 and teach nothing. Returns the advantages [N] and the
    share of such groups.
    """
    grouped = rewards_N.view(-1, samples)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    same = (grouped == grouped[:, :1]).all(dim=1, keepdim=True)
    if divide_by_std:
        centred = centred / (grouped.std(dim=1, keepdim=True) + eps)
    return torch.where(same, 0.0, centred).view(-1), float(same.float().mean())


@dataclass(frozen=True)
class TokenWeights:
    """What is fixed for a token before the update, each [X].

    Attributes:
        advantage: of the token's sample.
        old_logp: of the dense policy before the update.
        importance: truncated weight p_dense / p_rollout, ones if TIS is off.
        share: the token's share of the loss; sums to 1 over a minibatch.
    """

    advantage: Tensor
    old_logp: Tensor
    importance: Tensor
    share: Tensor


def importance_weights(old_logp: Tensor, rollout_logp: Tensor, cap: float | None) -> Tensor:
    """Truncated importance weights, detached; ones when the cap is None.

    The log-ratio is clamped to +-20; a token that the dense policy rules out (-inf) weighs 0.
    """
    if cap is None:
        return torch.ones_like(old_logp)
    weight = (old_logp - rollout_logp).clamp(-20, 20).exp().clamp(max=cap)
    return torch.where(old_logp.isfinite(), weight, 0.0).detach()


def token_shares(
    sample_X: Tensor, generated_N: Tensor, members_N: Tensor, config: TrainConfig, longest: int
) -> Tensor:
    """Share of each token in a minibatch's loss, by the named length normalisation.

    Args:
        sample_X: sample of each token.
        generated_N: generated tokens of every sample.
        members_N: True for the samples of the minibatch (those without tokens included).
        longest: the cap on generated tokens, the constant of `fixed_length`.

    `token`: all tokens alike. `sequence`: each sample alike, its tokens alike within it.
    `fixed_length`: each token 1 / (samples * cap), so long answers weigh more. float64.
    """
    members = int(members_N.sum())
    lengths = generated_N[sample_X].double()
    match config.loss_average:
        case "token":
            total = generated_N[members_N].sum().clamp(min=1)
            return torch.ones_like(lengths) / total
        case "sequence":
            return 1.0 / (lengths * members)
        case "fixed_length":
            return torch.full_like(lengths, 1.0 / (members * longest))


def policy_loss(logp: Tensor, fixed: TokenWeights, config: TrainConfig) -> Tensor:
    """Clipped surrogate, summed over tokens by share.

    Dual clip, if set, bounds the loss of tokens with negative advantage at `dual_clip` times it.
    A token of log-probability -inf is left out.
    """
    # select, never multiply by 0: -inf times 0 is NaN
    kept = logp.isfinite() & fixed.old_logp.isfinite()
    ratio = (logp[kept] - fixed.old_logp[kept]).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    advantage = fixed.advantage[kept]
    objective = torch.minimum(ratio * advantage, clipped * advantage)
    if config.dual_clip is not None:
        bounded = torch.maximum(objective, config.dual_clip * advantage)
        objective = torch.where(advantage < 0, bounded, objective)
    return -(objective * fixed.importance[kept] * fixed.share[kept]).sum()


def reference_kl(logp: Tensor, reference: Tensor, share: Tensor) -> Tensor:
    """k3 estimate of KL(policy || reference), summed over tokens by share.

    Log-ratios are clamped to +-20; a token of log-probability -inf is left out.
    """
    kept = logp.isfinite() & reference.isfinite()
    gap = (reference[kept] - logp[kept]).clamp(-20, 20)
    return ((gap.exp() - gap - 1) * share[kept]).sum()
