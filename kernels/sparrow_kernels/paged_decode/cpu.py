"""Forms of paged decode for caches whose rows lie one after the other: less to gather.

Each says which call of the definition (`naive.paged_decode`) it equals. A *row* is what one KV head
of one sequence has cached, contiguous. Shape suffixes: X rows, Y shared rows, G query heads of a
KV head, T tokens of a row, L tokens of a shared row, N pages of the pool, S slots of a page, D head
dim, W chosen pages.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class SharedRows(NamedTuple):
    """Rows that come before those of several sequences, such as the prompt of many samples.

    Shared rows are addressed in groups of equal size `m`, the largest; smaller ones are filled up
    with any row.
    """

    keys_YLD: Tensor
    values_YLD: Tensor
    row_of_member: Tensor
    """[Y * m]: which row each place of a group belongs to."""
    member_of_row: Tensor
    """[X]: the place of each row, y * m + j."""


def row_decode(
    q_XGD: Tensor, keys_XTD: Tensor, values_XTD: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """Attend to whole rows: the definition with every page chosen.

    Args:
        bias: added to the scores: 0, or -inf for what lies beyond a sequence's length. Its shape
            broadcasts against [X / K, K, G, T] for the K KV heads of its second axis. None: rows
            are exactly as long as their sequences.

    Returns:
        [X, G, D] in the dtype of q; softmax in float32 or better.
    """
    weights = _softmax(_scores(q_XGD, keys_XTD, scale), bias)
    return torch.bmm(weights.to(values_XTD.dtype), values_XTD)


def shared_row_decode(
    q_XGD: Tensor,
    keys_XTD: Tensor,
    values_XTD: Tensor,
    shared: SharedRows,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend to a shared row and then to the sequence's own: the definition with a page table whose
    first columns name the same pages for all sequences of a group.

    The shared part is one product for all of a group's queries. One softmax spans both parts, and
    so does `bias` [..., L + T].
    """
    X, G, D = q_XGD.shape
    Y, L, _ = shared.keys_YLD.shape
    grouped = q_XGD.index_select(0, shared.row_of_member).view(Y, -1, D)
    ahead = _scores(grouped, shared.keys_YLD, scale).view(-1, G * L)
    ahead_XGL = ahead.index_select(0, shared.member_of_row).view(X, G, L)
    weights = _softmax(torch.cat([ahead_XGL, _scores(q_XGD, keys_XTD, scale)], dim=-1), bias)
    weights = weights.to(values_XTD.dtype)
    grouped = weights.view(X, -1).index_select(0, shared.row_of_member)
    ahead = torch.bmm(grouped.view(Y, -1, weights.shape[-1])[..., :L], shared.values_YLD)
    ahead_XGD = ahead.view(-1, G * D).index_select(0, shared.member_of_row).view(X, G, D)
    return ahead_XGD.baddbmm_(weights[..., L:], values_XTD)


def page_decode(
    q_XGD: Tensor,
    pool_2NC: Tensor,
    pages_XW: Tensor,
    tokens: int,
    scale: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend to chosen pages of a pool.

    Args:
        pool_2NC: keys and values; a page of one KV head is a row of C = S * D numbers.
        pages_XW: rows of the pool, in the order of their positions.
        tokens: read so many of the W * S gathered ones, from the first on: the last chosen page
            is the sequence's last and may be partly filled.
    """
    X = len(pages_XW)
    D = q_XGD.shape[-1]
    both = pool_2NC.index_select(1, pages_XW.reshape(-1)).view(2, X, -1, D)
    return row_decode(q_XGD, both[0, :, :tokens], both[1, :, :tokens], scale, bias)


@lru_cache(maxsize=8)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a product is added to, times 0."""
    return torch.zeros((), dtype=dtype, device=device)


def _scores(q_XGD: Tensor, keys_XTD: Tensor, scale: float) -> Tensor:
    nothing = _nothing(q_XGD.dtype, q_XGD.device)
    return torch.baddbmm(nothing, q_XGD, keys_XTD.transpose(1, 2), beta=0, alpha=scale)


def _softmax(scores_XGT: Tensor, bias: Tensor | None) -> Tensor:
    if scores_XGT.dtype != torch.float64:
        scores_XGT = scores_XGT.float()
    if bias is not None:
        scores_XGT.view(len(bias), -1, *scores_XGT.shape[1:]).add_(bias)
    return scores_XGT.softmax(dim=-1)
