"""The slow and plain way: every sample alone, by transformers' own forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparrow_lab.rollout.batch import RolloutBatch
from tests.rollout.small_models import VOCABULARY


def random_batch(
    model: Any, prompt_lengths: Sequence[int], answers: Sequence[Sequence[int]], seed: int = 0
) -> RolloutBatch:
    """A batch of random texts: `answers[p][j]` is the length of sample j of prompt p, 0 allowed.

    Hidden states are noise, log-probabilities of the rollout too.
    """
    noise = torch.Generator().manual_seed(seed)

    def ids(*shape: int) -> Tensor:
        return torch.randint(0, VOCABULARY, shape, generator=noise)

    lengths = [n for group in answers for n in group]
    owner = [p for p, group in enumerate(answers) for _ in group]
    N, T = len(lengths), max([*lengths, 1])
    ends = torch.tensor(lengths)
    valid = torch.arange(T) < ends[:, None]
    dtype = next(model.parameters()).dtype
    hidden = torch.randn((N, T, model.config.hidden_size), generator=noise, dtype=torch.float64)
    logp = -3 * torch.rand((N, T), generator=noise, dtype=torch.float64)
    return RolloutBatch(
        prompts=[tuple(ids(n).tolist()) for n in prompt_lengths],
        prompt_N=torch.tensor(owner),
        tokens_NT=torch.where(valid, ids(N, T), 0),
        generated_N=ends,
        finished_N=torch.zeros(N, dtype=torch.bool),
        logp_NT=torch.where(valid, logp, 0.0).to(dtype),
        raw_logp_NT=torch.where(valid, logp, 0.0).to(dtype),
        hidden_NTM=hidden.to(dtype),
        attended_NT=torch.zeros((N, T), dtype=torch.long),
    )


def sample_hidden(model: Any, batch: RolloutBatch, s: int) -> Tensor:
    """Final hidden states [generated, M] behind a sample's tokens; one forward of its own."""
    prompt = batch.prompts[int(batch.prompt_N[s])]
    text = torch.tensor([[*prompt, *batch.answers()[s]]])
    out: Tensor = model.model(text).last_hidden_state[0, len(prompt) - 1 : -1]
    return out


def sample_logp(model: Any, batch: RolloutBatch, s: int, temperature: float = 1.0) -> Tensor:
    """Log-probabilities [generated] of a sample's tokens under the dense policy, with gradients."""
    logits = sample_hidden(model, batch, s) @ model.lm_head.weight.T / temperature
    tokens = torch.tensor(batch.answers()[s])
    logp: Tensor = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
    return logp


def gradients(model: Any) -> dict[str, Tensor]:
    """A copy of every gradient; zeros where there is none."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }


def assert_close(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """All entries equal within `tolerance` of the largest value of any of them."""
    assert a.keys() == b.keys()
    scale = max(float(x.abs().max()) for x in b.values()) or 1.0
    for name in a:
        gap = float((a[name] - b[name]).abs().max()) / scale
        assert np.isfinite(gap) and gap < tolerance, (name, gap)
