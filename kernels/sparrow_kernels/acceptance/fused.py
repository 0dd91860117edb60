"""Acceptance from hidden states on a GPU, in bounded memory.

Logits are made in float32, a chunk of tokens of both sides at a time, and read by one kernel.
Without a chunk's logits in memory (`recompute`) every product is made twice, which takes longer but
leaves next to no memory in use. Shape suffixes: T tokens, C tokens of a chunk, V vocabulary,
M model width, k of a top-k set.
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
        top_2Ck, which_2Ck = logits_2CV.topk(k, dim=-1)
        lse_2C = logits_2CV.div_(temperature).logsumexp(dim=-1)
        p_Ck, q_Ck = (top_2Ck.div_(temperature) - lse_2C[..., None]).exp_().unbind(0)
        same_Ckk = which_2Ck[0][:, :, None] == which_2Ck[1][:, None, :]
        both_Ckk = torch.minimum(p_Ck[:, :, None], q_Ck[:, None, :])
        alpha[part] = torch.where(same_Ckk, both_Ckk, 0.0).sum(dim=(1, 2))
        mass[part] = q_Ck.sum(dim=-1)
    return alpha, mass


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
