"""The definition of acceptance, in plain torch.

alpha_t = sum over v of min(p_dense(v), p_sparse(v)) = 1 - total variation (paper equation 2), of
the untruncated distributions at the sampling temperature. Shape suffixes: T tokens, V vocabulary,
M model width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class TokenStatistics(NamedTuple):
    """Per-token results, each [T] in float32 (float64 for float64 inputs)."""

    acceptance: Tensor
    logp_sparse: Tensor
    """Log-probability of the sampled token under the sparse actor."""
    logp_dense: Tensor
    kl_sparse_dense: Tensor
    """KL(sparse || dense)."""
    kl_dense_sparse: Tensor
    entropy_dense: Tensor


def acceptance_from_logits(
    sparse_TV: Tensor,
    dense_TV: Tensor,
    tokens_T: Tensor,
    temperature: float,
    lse_sparse_T: Tensor | None = None,
    lse_dense_T: Tensor | None = None,
) -> TokenStatistics:
    """Compare two sets of logits token by token.

    Args:
        lse_sparse_T, lse_dense_T: log-sum-exp over the vocabulary of logits / temperature, where
            it is known already; taken as it is.

    NaN in the logits of a token makes all its results NaN, except the other side's own.

    Raises:
        ValueError: at temperature 0: greedy decoding has no acceptance.
    """
    check_temperature(temperature)
    ls_TV = _log_probabilities(sparse_TV, temperature, lse_sparse_T)
    ld_TV = _log_probabilities(dense_TV, temperature, lse_dense_T)
    ps_TV, pd_TV = ls_TV.exp(), ld_TV.exp()
    pick = tokens_T[:, None]
    # xlogy-like products: a probability of exactly 0 contributes 0, whatever its logarithm
    gap_TV = ls_TV - ld_TV
    return TokenStatistics(
        acceptance=torch.minimum(ps_TV, pd_TV).sum(dim=-1).clamp(max=1.0),
        logp_sparse=ls_TV.gather(1, pick).squeeze(1),
        logp_dense=ld_TV.gather(1, pick).squeeze(1),
        kl_sparse_dense=torch.where(ps_TV == 0, 0.0, ps_TV * gap_TV).sum(dim=-1),
        kl_dense_sparse=torch.where(pd_TV == 0, 0.0, -pd_TV * gap_TV).sum(dim=-1),
        entropy_dense=-torch.where(pd_TV == 0, 0.0, pd_TV * ld_TV).sum(dim=-1),
    )


def acceptance_from_hidden(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    tokens_T: Tensor,
    temperature: float,
    chunk: int = 2048,
    lse_sparse_T: Tensor | None = None,
    lse_dense_T: Tensor | None = None,
) -> TokenStatistics:
    """The same from final hidden states (after the last norm) and the shared output head.

    Memory is bounded by `chunk` tokens of logits twice over. No tokens give empty results.
    """
    parts = [
        acceptance_from_logits(
            sparse_TM[part] @ head_VM.T,
            dense_TM[part] @ head_VM.T,
            tokens_T[part],
            temperature,
            None if lse_sparse_T is None else lse_sparse_T[part],
            None if lse_dense_T is None else lse_dense_T[part],
        )
        for part in _chunks(len(tokens_T), chunk)
    ]
    return TokenStatistics(*(torch.cat(column) for column in zip(*parts, strict=True)))


def top_k_acceptance(
    sparse_TV: Tensor, dense_TV: Tensor, k: int, temperature: float
) -> tuple[Tensor, Tensor]:
    """The paper's estimator: only tokens in both top-k sets count, nothing is renormalised.

    A lower bound of the exact acceptance. Returns (acceptance, kept dense mass), each [T]; the kept
    mass is the dense probability inside the dense top-k set.

    Raises:
        ValueError: at temperature 0.
    """
    check_temperature(temperature)
    wide = torch.float64 if sparse_TV.dtype == torch.float64 else torch.float32
    ps_TV = (sparse_TV.to(wide) / temperature).softmax(dim=-1)
    pd_TV = (dense_TV.to(wide) / temperature).softmax(dim=-1)
    k = min(k, ps_TV.shape[-1])

    def inside(p_TV: Tensor) -> Tensor:
        top = p_TV.topk(k, dim=-1).indices
        return torch.zeros_like(p_TV, dtype=torch.bool).scatter_(1, top, True)

    in_dense = inside(pd_TV)
    both = inside(ps_TV) & in_dense
    alpha = torch.where(both, torch.minimum(ps_TV, pd_TV), 0.0).sum(dim=-1)
    return alpha, torch.where(in_dense, pd_TV, 0.0).sum(dim=-1)


def top_k_from_hidden(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    k: int,
    temperature: float,
    chunk: int = 2048,
) -> tuple[Tensor, Tensor]:
    """`top_k_acceptance` from hidden states, `chunk` tokens of logits at a time."""
    parts = [
        top_k_acceptance(sparse_TM[part] @ head_VM.T, dense_TM[part] @ head_VM.T, k, temperature)
        for part in _chunks(len(sparse_TM), chunk)
    ]
    alpha, mass = zip(*parts, strict=True)
    return torch.cat(alpha), torch.cat(mass)


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless the temperature is above 0."""
    if not temperature > 0:
        raise ValueError("acceptance needs a temperature above 0: greedy decoding has none")


def _log_probabilities(logits_TV: Tensor, temperature: float, lse_T: Tensor | None) -> Tensor:
    wide = torch.float64 if logits_TV.dtype == torch.float64 else torch.float32
    scaled_TV = logits_TV.to(wide) / temperature
    if lse_T is None:
        return scaled_TV.log_softmax(dim=-1)
    return scaled_TV - lse_T.to(wide)[:, None]


def _chunks(tokens: int, chunk: int) -> Iterator[slice]:
    """Slices of at most `chunk` tokens; one, empty, of none."""
    for start in range(0, max(tokens, 1), chunk):
        yield slice(start, start + chunk)
