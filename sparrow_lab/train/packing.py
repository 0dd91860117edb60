"""Groups of samples that share a prompt, laid out for one dense pass.

The pass is one stream of tokens: the prompts, each once, and behind them what every sample was fed.
Only attention sees samples: in blocks of samples of like length, each with its prompt's keys before
its own. So a prompt is computed once for all its samples, nothing is padded outside attention,
and little inside.

Shape suffixes: L tokens of the stream, N sequences of a block, T queries and E keys of the longest
of them, X generated tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.rollout.batch import RolloutBatch

Ints = npt.NDArray[np.int64]

LIKE = 0.85
"""A block's shortest sequence is at least so long, measured by its longest."""


@dataclass(frozen=True)
class Block:
    """Sequences that attend together.

    Attributes:
        query_NT, key_NE: tokens of the stream, any token where padded.
        real_NT: True for queries that are no padding.
        bias_NTE: 0 where a query sees a key, -inf elsewhere. N is 1 if all sequences are alike;
            E is that of the last keys, if every query sees all those before them.
    """

    query_NT: Tensor
    key_NE: Tensor
    real_NT: Tensor
    bias_NTE: Tensor


@dataclass(frozen=True)
class PackedRows:
    """One pass over a stream.

    Attributes:
        tokens_L, positions_L: int64.
        blocks: of attention; every token of the stream is a query of one of them.
        source_X: token whose final hidden state makes the distribution of each generated token.
        sample_X, column_X: which generated token that is.
    """

    tokens_L: Tensor
    positions_L: Tensor
    blocks: list[Block]
    source_X: Tensor
    sample_X: Tensor
    column_X: Tensor


def pack(
    batch: RolloutBatch, samples: Sequence[int], max_tokens: int = 16_384
) -> Iterator[PackedRows]:
    """Pack the given samples (indices into the batch), yielding streams of at most `max_tokens`.

    A stream of a single sample may be longer. Samples without generated tokens are left out.
    """
    ends, owners = batch.generated_N.tolist(), batch.prompt_N.tolist()
    chosen = sorted((s for s in samples if ends[s]), key=lambda s: (owners[s], s))
    part: list[int] = []
    tokens = 0
    for s in chosen:
        prompt = len(batch.prompts[owners[s]])
        more = ends[s] - 1 + (0 if part and owners[part[-1]] == owners[s] else prompt)
        if part and tokens + more > max_tokens:
            yield _build(batch, part)
            part, tokens, more = [], 0, prompt + ends[s] - 1
        part.append(s)
        tokens += more
    if part:
        yield _build(batch, part)


def _build(batch: RolloutBatch, samples: list[int]) -> PackedRows:
    owners = batch.prompt_N.numpy(force=True)
    answers, device = batch.tokens_NT.numpy(force=True), batch.tokens_NT.device
    chosen = np.array(samples)
    # the last generated token is fed to nobody: it predicts nothing
    fed = batch.generated_N.numpy(force=True)[chosen] - 1
    order = np.argsort(-fed, kind="stable")
    chosen, fed = chosen[order], fed[order]
    used, owner = np.unique(owners[chosen], return_inverse=True)
    texts = [np.array(batch.prompts[p], np.int64) for p in used]
    prompt = np.array([len(text) for text in texts])
    starts = _starts(prompt)
    first = int(prompt.sum()) + _starts(fed)
    stream = np.concatenate(texts + [answers[s, :n] for s, n in zip(chosen, fed, strict=True)])
    blocks: list[Block] = []
    long_first = np.argsort(-prompt, kind="stable")
    for part in _alike(prompt[long_first]):
        mine = long_first[part]
        blocks.append(_block(_Grid(starts[mine], prompt[mine]), None, device))
    for part in _alike(fed):
        mine = owner[part]
        ahead = _Grid(starts[mine], prompt[mine])
        blocks.append(_block(_Grid(first[part], fed[part]), ahead, device))
    counts = fed + 1
    column = np.arange(counts.sum()) - np.repeat(_starts(counts), counts)
    behind = np.repeat(starts[owner] + prompt[owner] - 1, counts)
    source = np.where(column == 0, behind, np.repeat(first, counts) + column - 1)
    lengths = np.concatenate([prompt, fed])
    before = np.concatenate([np.zeros_like(prompt), prompt[owner]])
    positions = np.arange(len(stream)) - np.repeat(_starts(lengths) - before, lengths)

    return PackedRows(
        _tensor(stream, device),
        _tensor(positions, device),
        blocks,
        _tensor(source, device),
        _tensor(np.repeat(chosen, counts), device),
        _tensor(column, device),
    )


def _tensor(x: Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(x.astype(np.int64, copy=False)).to(device)


class _Grid:
    """Stretches of the stream of different lengths as a rectangle, padded on the right."""

    def __init__(self, starts: Ints, lengths: Ints) -> None:
        at = np.arange(int(lengths.max()))
        self.real = at < lengths[:, None]
        self.index: Ints = starts[:, None] + np.where(self.real, at, 0)


def _block(own: _Grid, ahead: _Grid | None, device: torch.device) -> Block:
    """Causal attention within stretches and, before them, to all of the stretches `ahead`."""
    N, T = own.index.shape
    seen, keys = np.tri(T, dtype=bool)[None], own.index
    if ahead is not None:
        keys = np.concatenate([ahead.index, keys], axis=1)
        if not ahead.real.all():
            before = np.broadcast_to(ahead.real[:, None], (N, T, ahead.real.shape[1]))
            seen = np.concatenate([before, np.broadcast_to(seen, (N, T, T))], axis=2)
    hidden = torch.from_numpy(~seen).to(device)
    bias = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))
    real = torch.from_numpy(own.real).to(device)
    return Block(_tensor(own.index, device), _tensor(keys, device), real, bias)


def _starts(lengths: Ints) -> Ints:
    starts: Ints = np.cumsum(lengths) - lengths
    return starts


def _alike(falling: Ints) -> Iterator[slice]:
    """Split lengths, sorted from the longest, into parts of like length; 0 is left out."""
    start, end = 0, int((falling > 0).sum())
    while start < end:
        stop = start + int((falling[start:end] >= LIKE * falling[start]).sum())
        yield slice(start, stop)
        start = stop
