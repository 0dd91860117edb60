"""Acceptance from hidden states on a GPU, in bounded memory.

Logits are made in float32, a chunk of tokens of both sides at a time, and read by one kernel.
Without a chunk's logits in memory (`recompute`) every product is made twice, which takes longer
unless both log-sum-exps are known, but leaves next to no memory in use.

Shape suffixes: T tokens, C tokens of a chunk, X = 2 * C, V vocabulary, S segments of it, M model
width, k of a top-k set.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from sparrow_kernels.acceptance import triton as kernels
from sparrow_kernels.acceptance.configs import Config
from sparrow_kernels.acceptance.naive import TokenStatistics


@torch.no_grad()
def acceptance_in_chunks(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    tokens_T: Tensor,
    temperature: float,
    chunk: int | None,
    lse_sparse_T: Tensor | None,
    lse_dense_T: Tensor | None,
    config: Config,
) -> TokenStatistics:
    """`naive.acceptance_from_hidden` with two matrix products a token and stored logits."""
    out_6T = torch.empty(
        (kernels.RESULTS, len(tokens_T)), dtype=torch.float32, device=tokens_T.device
    )
    for part, logits_2CV in _logits(sparse_TM, dense_TM, head_VM, chunk, config):
        kernels.statistics_of_logits(
            logits_2CV,
            tokens_T[part],
            1 / temperature,
            None if lse_sparse_T is None else lse_sparse_T[part],
            None if lse_dense_T is None else lse_dense_T[part],
            out_6T[:, part],
            config.read,
        )
    return TokenStatistics(*out_6T.unbind(0))


@torch.no_grad()
def acceptance_by_recompute(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    tokens_T: Tensor,
    temperature: float,
    lse_sparse_T: Tensor | None,
    lse_dense_T: Tensor | None,
    config: Config,
) -> TokenStatistics:
    """The same with four matrix products a token, two where both log-sum-exps are known."""
    inverse = 1 / temperature
    if lse_sparse_T is None:
        lse_sparse_T = kernels.lse_of_hidden(sparse_TM, head_VM, inverse, config.lse)
    if lse_dense_T is None:
        lse_dense_T = kernels.lse_of_hidden(dense_TM, head_VM, inverse, config.lse)
    out_6T = kernels.statistics_of_hidden(
        sparse_TM,
        dense_TM,
        head_VM,
        tokens_T,
        inverse,
        lse_sparse_T,
        lse_dense_T,
        config.statistics,
    )
    return TokenStatistics(*out_6T.unbind(0))


@torch.no_grad()
def top_k_in_chunks(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    k: int,
    temperature: float,
    chunk: int | None,
    config: Config,
) -> tuple[Tensor, Tensor]:
    """`naive.top_k_from_hidden`: the sets meet by their k * k pairs, not over all entries."""
    k = min(k, len(head_VM))
    alpha, mass = torch.empty((2, len(sparse_TM)), device=sparse_TM.device).unbind(0)
    for part, logits_2CV in _logits(sparse_TM, dense_TM, head_VM, chunk, config):
        logits_XV = logits_2CV.flatten(0, 1)
        tops_XS, lse_X = kernels.scan_logits(logits_XV, 1 / temperature, config.read)
        top_Xk, which_Xk = _best(logits_XV, tops_XS, k, config.read.segment)
        p_Xk = (top_Xk / temperature - lse_X[:, None]).exp_()
        (p_Ck, q_Ck), (a_Ck, b_Ck) = p_Xk.chunk(2), which_Xk.chunk(2)
        both_Ckk = torch.minimum(p_Ck[:, :, None], q_Ck[:, None, :])
        same_Ckk = a_Ck[:, :, None] == b_Ck[:, None, :]
        alpha[part] = torch.where(same_Ckk, both_Ckk, 0.0).sum(dim=(1, 2))
        mass[part] = q_Ck.sum(dim=-1)
    return alpha, mass


def _best(logits_XV: Tensor, tops_XS: Tensor, k: int, segment: int) -> tuple[Tensor, Tensor]:
    """The k largest logits of each row, and which they are.

    They lie in the k segments whose largest logits are the largest: any other segment has k
    numbers before all of its own.
    """
    V = logits_XV.shape[1]
    if 4 * k * segment >= V:
        top = logits_XV.topk(k, dim=-1)
        return top.values, top.indices
    found_Xk = tops_XS.topk(k, dim=-1).indices
    inner = torch.arange(segment, device=logits_XV.device)
    columns = (found_Xk[..., None] * segment + inner).flatten(1)
    few = logits_XV.gather(1, columns.clamp(max=V - 1))
    top = few.masked_fill_(columns >= V, float("-inf")).topk(k, dim=-1)
    return top.values, columns.gather(1, top.indices)


def _logits(
    sparse_TM: Tensor, dense_TM: Tensor, head_VM: Tensor, chunk: int | None, config: Config
) -> Iterator[tuple[slice, Tensor]]:
    """Float32 logits of both sides, chunk by chunk, all in the same memory."""
    T, (V, M) = len(sparse_TM), head_VM.shape
    if chunk is None:
        chunk = _even_chunk(T, config.bytes // (8 * V))
    chunk = max(min(chunk, T), 1)
    # one product for both sides reads the head once
    rows_XM = sparse_TM.new_empty((2 * chunk, M))
    logits_XV = torch.empty((2 * chunk, V), dtype=torch.float32, device=sparse_TM.device)
    for start in range(0, T, chunk):
        size = min(chunk, T - start)
        part = slice(start, start + size)
        rows = torch.cat([sparse_TM[part], dense_TM[part]], out=rows_XM[: 2 * size])
        logits = logits_XV[: 2 * size]
        if rows.dtype == torch.float32:
            torch.mm(rows, head_VM.T, out=logits)
        else:
            torch.mm(rows, head_VM.T, out_dtype=torch.float32, out=logits)
        yield part, logits.view(2, size, V)


def _even_chunk(tokens: int, most: int) -> int:
    """At most `most` tokens, so that chunks are about alike; whole tiles of products if it can."""
    most = max(most // 128 * 128, min(most, 128), 1)
    chunks = max(-(-tokens // most), 1)
    even = -(-tokens // chunks)
    return min(-(-even // 64) * 64, most)
