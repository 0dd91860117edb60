"""Dense forward passes over groups of samples that share a prompt.

A group's samples lie one after the other behind a single copy of their prompt; a mask lets each see
the prompt and itself. The prompt is computed once for many samples instead of once for each,
which is most of the work when answers are short. How many samples share a row balances that
against the attention over other samples' masked tokens.

Shape suffixes: R rows, L tokens of a row, N samples, T generated tokens of the longest sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from sparrow_lab.rollout.batch import RolloutBatch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class PackedRows:
    """Rows for one forward pass.

    Attributes:
        tokens_RL, positions_RL: int64; padding has token 0 and position 0.
        mask_RLL: True where a query (second axis) may see a key (third axis).
        source_X: flat index into [R * L] of the hidden state behind each generated token.
        sample_X, column_X: which generated token that is.
    """

    tokens_RL: Tensor
    positions_RL: Tensor
    mask_RLL: Tensor
    source_X: Tensor
    sample_X: Tensor
    column_X: Tensor


def samples_a_row(prompt: int, answers: list[int], linear: float, attention: float) -> int:
    """Samples of a group that share a row, by estimated cost.

    Args:
        prompt: prompt tokens.
        answers: generated tokens of each sample of the group.
        linear: FLOPs of the weights a token.
        attention: FLOPs of attention a (query, key) pair.
    """
    mean = sum(answers) / len(answers)
    best, least = 1, float("inf")
    size = 1
    while size <= len(answers):
        row = prompt + size * mean
        rows = len(answers) / size
        cost = rows * (row * linear + row * row * attention)
        if cost < least:
            best, least = size, cost
        size *= 2
    return best


def pack(
    batch: RolloutBatch, model: PreTrainedModel, samples: list[int], max_tokens: int = 16_384
) -> Iterator[PackedRows]:
    """Pack the given samples (indices into the batch), yielding rows of at most about `max_tokens`.

    Samples without generated tokens are left out.
    """
    config: Any = model.config
    width = config.num_hidden_layers * config.hidden_size
    linear = 2.0 * 12 * width * config.hidden_size
    ends: list[int] = batch.generated_N.tolist()
    groups: dict[int, list[int]] = {}
    for s in samples:
        if ends[s]:
            groups.setdefault(int(batch.prompt_N[s]), []).append(s)
    rows: list[tuple[int, list[int]]] = []
    for p, members in groups.items():
        size = samples_a_row(len(batch.prompts[p]), [ends[s] for s in members], linear, 4.0 * width)
        # neighbours in length share a row, so that padding stays small
        members = sorted(members, key=lambda s: (ends[s], s))
        rows += [(p, members[i : i + size]) for i in range(0, len(members), size)]

    def row_length(row: tuple[int, list[int]]) -> int:
        return len(batch.prompts[row[0]]) + sum(ends[s] - 1 for s in row[1])

    rows.sort(key=row_length)
    start = 0
    while start < len(rows):
        stop, longest = start, 0
        while stop < len(rows):
            longest = row_length(rows[stop])
            if stop > start and longest * (stop + 1 - start) > max_tokens:
                break
            stop += 1
        yield _build(batch, rows[start:stop], ends)
        start = stop


def _build(batch: RolloutBatch, rows: list[tuple[int, list[int]]], ends: list[int]) -> PackedRows:
    answers = batch.tokens_NT.cpu().numpy()
    length = max(len(batch.prompts[p]) + sum(ends[s] - 1 for s in ss) for p, ss in rows)
    tokens = np.zeros((len(rows), length), np.int64)
    positions = np.zeros_like(tokens)
    owner = np.full_like(tokens, -2)  # -2 padding, -1 prompt, else the sample
    source, sample, column = [], [], []
    for r, (p, members) in enumerate(rows):
        prompt = batch.prompts[p]
        n = len(prompt)
        tokens[r, :n], positions[r, :n], owner[r, :n] = prompt, np.arange(n), -1
        at = n
        for s in members:
            fed = ends[s] - 1  # the last token predicts nothing
            tokens[r, at : at + fed] = answers[s, :fed]
            positions[r, at : at + fed] = n + np.arange(fed)
            owner[r, at : at + fed] = s
            behind = np.concatenate([[n - 1], at + np.arange(fed)])
            source.append(r * length + behind)
            sample.append(np.full(fed + 1, s))
            column.append(np.arange(fed + 1))
            at += fed
    device = batch.tokens_NT.device
    own = torch.from_numpy(owner).to(device)
    index = torch.arange(length, device=device)
    mask = (own[:, None, :] == -1) | (own[:, :, None] == own[:, None, :])
    mask &= index[None, None, :] <= index[None, :, None]

    def flat(parts: list[Any]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)

    return PackedRows(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(positions).to(device),
        mask,
        flat(source),
        flat(sample),
        flat(column),
    )


def dense_hidden(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    """Final hidden states [X, M] behind each generated token, by full attention, with gradients."""
    core = cast(Any, model).model
    hidden = core(
        input_ids=rows.tokens_RL,
        position_ids=rows.positions_RL,
        attention_mask=rows.mask_RLL[:, None],
        use_cache=False,
    ).last_hidden_state
    return cast(Tensor, hidden.flatten(0, 1)[rows.source_X])
