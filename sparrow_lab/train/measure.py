"""Dense recompute: what the dense policy says of every token that the sparse actor wrote.

Shape suffixes: N samples, T generated tokens, X tokens of a packed pass, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.acceptance import TokenStatistics, acceptance_from_hidden, top_k_from_hidden
from sparrow_lab.acceptance.histogram import AcceptanceHistogram
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.train.forward import dense_hidden
from sparrow_lab.train.packing import PackedRows, pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass
class TokenTable:
    """Per-token results of a dense recompute, each [N, T]; NaN where nothing was computed."""

    acceptance_NT: Tensor
    logp_dense_NT: Tensor
    kl_NT: Tensor
    """KL(sparse || dense) over the full vocabulary."""
    entropy_NT: Tensor
    kept_mass_NT: Tensor
    """Dense mass inside the top-k set; 1 for the exact estimator."""

    @classmethod
    def empty(cls, batch: RolloutBatch) -> TokenTable:
        """All NaN."""
        return cls(*(torch.full_like(batch.logp_NT, float("nan")) for _ in range(5)))

    def put(self, rows: PackedRows, stats: TokenStatistics) -> None:
        """Enter the results of one packed pass."""
        at = (rows.sample_X, rows.column_X)
        self.acceptance_NT[at] = stats.acceptance
        self.logp_dense_NT[at] = stats.logp_dense
        self.kl_NT[at] = stats.kl_sparse_dense
        self.entropy_NT[at] = stats.entropy_dense
        self.kept_mass_NT[at] = 1.0


def head_of(model: PreTrainedModel) -> Tensor:
    """The output head [V, M], with gradients."""
    return cast(Tensor, cast(Any, model).lm_head.weight)


def token_logp(hidden: Tensor, head: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """Log-probability of each token [X] from hidden states [X, M], in float32 or better."""
    logits = hidden @ head.T
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return (wide / temperature).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def recompute(
    model: PreTrainedModel,
    batch: RolloutBatch,
    temperature: float,
    samples: list[int] | None = None,
    top_k: int | None = None,
) -> TokenTable:
    """Acceptance and dense log-probabilities of these samples (default: all).

    Args:
        batch: must have kept its hidden states.
        top_k: use the paper's top-k estimator for acceptance instead of the exact one.
    """
    table = TokenTable.empty(batch)
    everyone = list(range(len(batch.generated_N)))
    for rows in pack(batch, everyone if samples is None else samples):
        dense = dense_hidden(model, rows)
        table.put(rows, compare(batch, rows, dense, head_of(model), temperature))
        if top_k is not None:
            at = (rows.sample_X, rows.column_X)
            sparse = hidden_at(batch, *at)
            alpha, mass = top_k_from_hidden(sparse, dense, head_of(model), top_k, temperature)
            table.acceptance_NT[at] = alpha
            table.kept_mass_NT[at] = mass
    return table


def compare(
    batch: RolloutBatch, rows: PackedRows, dense: Tensor, head: Tensor, temperature: float
) -> TokenStatistics:
    """Statistics of the tokens of one packed pass against the hidden states of the rollout."""
    at = (rows.sample_X, rows.column_X)
    sparse, tokens = hidden_at(batch, *at), batch.tokens_NT[at]
    return acceptance_from_hidden(sparse, dense, head, tokens, temperature)


def hidden_at(batch: RolloutBatch, *at: Tensor) -> Tensor:
    """Hidden states [X, M] of some tokens of a rollout, brought to where its tokens are.

    Args:
        at: row and column of each token, or one mask [N, T].

    Raises:
        ValueError: the rollout kept none.
    """
    hidden = batch.hidden_NTM
    if hidden is None:
        raise ValueError("the rollout kept no hidden states: ask for keep_hidden")
    return hidden[tuple(x.to(hidden.device) for x in at)].to(batch.tokens_NT.device)


def counted_tokens(
    batch: RolloutBatch, table: TokenTable
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """(lengths, acceptance, prompts, kept mass) of the tokens that acceptance counts, as numpy."""
    mask = batch.counted_NT
    prompts = batch.prompt_N[:, None].expand_as(batch.tokens_NT)
    parts = (batch.length_NT, table.acceptance_NT, prompts, table.kept_mass_NT)
    lengths, alpha, prompt, mass = (x[mask].cpu().numpy() for x in parts)
    return lengths, alpha, prompt, mass


def histogram_of(
    batch: RolloutBatch, table: TokenTable, bin_width: int, temperature: float, **settings: Any
) -> AcceptanceHistogram:
    """The acceptance histogram of a rollout."""
    lengths, alpha, prompts, mass = counted_tokens(batch, table)
    empty = AcceptanceHistogram.empty(bin_width, temperature=temperature, **settings)
    return empty.add(lengths, alpha, prompts, mass)


def counts_by_prompt(
    batch: RolloutBatch, table: TokenTable, bin_width: int, bins: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Counts [prompts, length bins, acceptance bins] and sums [length bins], for calibration."""
    from sparrow_lab.acceptance.histogram import ACCEPTANCE_BINS, acceptance_bin

    lengths, alpha, prompts, _ = counted_tokens(batch, table)
    index = (prompts * bins + lengths // bin_width) * ACCEPTANCE_BINS + acceptance_bin(
        alpha.astype(np.float64)
    )
    size = len(batch.prompts) * bins * ACCEPTANCE_BINS
    counts = np.bincount(index, minlength=size).astype(np.int64)
    sums = np.bincount(lengths // bin_width, weights=alpha, minlength=bins)
    shaped = counts.reshape(len(batch.prompts), bins, ACCEPTANCE_BINS)
    return shaped, sums.astype(np.float64)
