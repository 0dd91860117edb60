"""The definition of attention over chosen pages, in plain torch.

Dense and sparse decode are the same op: dense passes every page. Shape suffixes: B sequences,
K KV heads, G query heads of a KV head, N pages of the pool, S slots of a page, D head dim,
P columns of the page table, W chosen pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Attended(NamedTuple):
    """Attention over some tokens, and what is needed to join it with that over others."""

    out_BKGD: Tensor
    """In the dtype of q; zeros for an empty slot (a sequence of length 0)."""
    lse_BKG: Tensor
    """Natural logarithm of the sum of exp(score); -inf for an empty slot. float32 or better."""


def paged_decode(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    table_BP: Tensor,
    pages_BKW: Tensor | None,
    lengths_B: Tensor,
    scale: float,
) -> Attended:
    """Attend from one query position a sequence to its chosen pages.

    Args:
        q_BKGD: queries after norm and rotation.
        keys_NKSD, values_NKSD: the pool; its rows are physical pages.
        table_BP: physical page of each logical page (any valid row where unused).
        pages_BKW: logical pages, ascending; P marks no page. K may be 1: all heads alike. None:
            every page.
        lengths_B: tokens in the cache, the current one included; 0 for an empty slot.
        scale: factor on q.k, usually D ** -0.5.

    Pool rows that the table does not name may hold anything, NaN too. Rows that it names must be
    finite also in slots beyond the length: a masked slot enters the product with weight 0.

    Returns:
        The output in the dtype of q, softmax in float32 or better; and its log-sum-exp.
    """
    B, K, _, D = q_BKGD.shape
    N, _, S, _ = keys_NKSD.shape
    P = table_BP.shape[1]
    if pages_BKW is None:
        pages_BKW = torch.arange(P, device=q_BKGD.device)[None, None]
    W = pages_BKW.shape[-1]
    heads_K = torch.arange(K, device=q_BKGD.device)
    slot_S = torch.arange(S, device=q_BKGD.device)
    # pages_BKW may stand for all heads or all sequences: expand only where rows are named
    beyond = P * S
    position_BKT = (pages_BKW[..., None] * S + slot_S).flatten(-2)
    hidden_BKT = position_BKT >= lengths_B[:, None, None].clamp(max=beyond)
    chosen_BKW = pages_BKW.clamp(max=P - 1).expand(B, -1, W).long()
    physical_BKW = table_BP[:, None, :].expand(B, chosen_BKW.shape[1], P).gather(2, chosen_BKW)
    rows = (physical_BKW.long() * K + heads_K[:, None]).reshape(-1)
    k_BKTD = keys_NKSD.reshape(N * K, S * D).index_select(0, rows).view(B, K, W * S, D)
    v_BKTD = values_NKSD.reshape(N * K, S * D).index_select(0, rows).view(B, K, W * S, D)
    scores_BKGT = (q_BKGD * scale) @ k_BKTD.transpose(2, 3)
    if scores_BKGT.dtype != torch.float64:
        scores_BKGT = scores_BKGT.float()
    scores_BKGT.masked_fill_(hidden_BKT[:, :, None], float("-inf"))
    out_BKGD = scores_BKGT.softmax(dim=-1).to(v_BKTD.dtype) @ v_BKTD
    out_BKGD = out_BKGD.masked_fill(lengths_B[:, None, None, None] <= 0, 0.0)
    return Attended(out_BKGD, scores_BKGT.logsumexp(dim=-1))


def merge_attended(parts: Sequence[Attended]) -> Attended:
    """Join attention over disjoint sets of tokens into that over all of them.

    Each part counts by its share of the sum of exp(score); empty parts count nothing.
    """
    lse_NBKG = torch.stack([part.lse_BKG for part in parts])
    whole_BKG = lse_NBKG.logsumexp(dim=0)
    # where all parts are empty, -inf - -inf would be NaN
    share_NBKG = (lse_NBKG - whole_BKG.masked_fill(whole_BKG == float("-inf"), 0.0)).exp()
    out_NBKGD = torch.stack([part.out_BKGD for part in parts]).to(share_NBKG.dtype)
    out_BKGD = (out_NBKGD * share_NBKG[..., None]).sum(dim=0)
    return Attended(out_BKGD.to(parts[0].out_BKGD.dtype), whole_BKG)
