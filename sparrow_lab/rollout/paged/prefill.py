"""Prompts into keys and values, densely: short ones together, long ones in chunks.

Shape suffixes: L layers, K KV heads, G query heads of a KV head, n tokens of a chunk, T tokens of a
prompt, D head dim, M model width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.rollout.decoder import Decoder


class Prefilled(NamedTuple):
    """A prompt that has been read."""

    place: int
    """Its place among those that were asked for."""
    hidden_M: Tensor
    """Final hidden state of its last token."""
    kv_L2KTD: Tensor


def prefill(
    decoder: Decoder, prompts: Sequence[Sequence[int]], chunk: int, adapted: Sequence[bool]
) -> Iterator[Prefilled]:
    """Read prompts in their order, no more than about `chunk` tokens at once.

    One prompt's keys and values at a time are handed out, so write them away before the next.

    Args:
        adapted: of each prompt, whether the model's adapters are on, if it has any.
    """
    batch: list[int] = []
    for index, prompt in enumerate(prompts):
        longest = max(len(prompts[i]) for i in [*batch, index])
        if batch and longest * (len(batch) + 1) > chunk:
            yield from _together(decoder, prompts, batch, adapted)
            batch = []
        if len(prompt) > chunk:
            yield _in_chunks(decoder, index, prompt, chunk, adapted[index])
        else:
            batch.append(index)
    if batch:
        yield from _together(decoder, prompts, batch, adapted)


def _together(
    decoder: Decoder, prompts: Sequence[Sequence[int]], batch: list[int], adapted: Sequence[bool]
) -> Iterator[Prefilled]:
    """Several prompts in one pass, padded on the right."""
    lengths = [len(prompts[i]) for i in batch]
    tokens = torch.zeros((len(batch), max(lengths)), dtype=torch.long)
    for row, i in enumerate(batch):
        tokens[row, : lengths[row]] = torch.tensor(prompts[i])
    on = None
    if decoder.adapted:
        on = torch.tensor([adapted[i] for i in batch], device=decoder.device)
    hidden, layers = decoder.prefill(tokens.to(decoder.device), on)
    for row, (i, n) in enumerate(zip(batch, lengths, strict=True)):
        kv = torch.stack([both[:, row, :, :n] for both in layers])
        yield Prefilled(i, hidden[row, n - 1].clone(), kv)


def _in_chunks(
    decoder: Decoder, index: int, prompt: Sequence[int], chunk: int, adapted: bool
) -> Prefilled:
    """One long prompt; each chunk attends to those before it and to itself."""
    # seconds to import, and most rollouts have no such prompt
    from torch.nn.attention.bias import causal_lower_right

    K, G, D, T = decoder.kv_heads, decoder.group, decoder.head_dim, len(prompt)
    tokens = torch.tensor(prompt, device=decoder.device)
    kv = torch.empty((decoder.layers, 2, K, T, D), dtype=decoder.dtype, device=decoder.device)
    for start in range(0, T, chunk):
        end = min(start + chunk, T)
        x = decoder.embed(tokens[start:end])
        turns = decoder.turns(np.arange(start, end))
        on = x.new_full((end - start, 1), float(adapted)) if decoder.adapted else None
        mask = causal_lower_right(end - start, end) if start else None
        for i in range(decoder.layers):
            y = decoder.project(i, x, turns, on).view(end - start, K, G + 2, D)
            y = y.permute(1, 2, 0, 3)
            kv[i, :, :, start:end] = y[:, G:].transpose(0, 1)
            seen = kv[i, :, None, :, :end]
            attended = F.scaled_dot_product_attention(
                y[:, :G].reshape(1, K * G, end - start, D),
                seen[0],
                seen[1],
                attn_mask=mask,
                is_causal=mask is None,
                scale=decoder.scale,
                enable_gqa=True,
            )
            x = decoder.finish(i, x, attended.transpose(1, 2).reshape(end - start, -1), on)
    return Prefilled(index, decoder.final(x)[-1].clone(), kv)
