"""The definition of page choice, in plain torch.

Shape suffixes: B sequences, K KV heads, G query heads of a KV head, P pages of the longest
sequence, R rows of a landmark, D head dim, W chosen pages of the sequence with most.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Score = Literal["group_mean", "softmax_max"]

INF = float("inf")


def page_scores(
    q_BKGD: Tensor, landmarks_BPKRD: Tensor, candidate_BP: Tensor, score: Score
) -> Tensor:
    """Score every page for every KV head.

    A landmark of two rows (bounds) gives Quest's upper bound on q.k; one row gives q.landmark.
    `group_mean` scores the mean query of the group (paper section 2); `softmax_max` takes, over
    the group, the maximum of each head's softmax over the candidate pages.

    Returns:
        [B, K, P] scores; only those of candidate pages mean anything.
    """
    landmarks_BKPRD = landmarks_BPKRD.transpose(1, 2)
    if score == "group_mean":
        q_BKGD = q_BKGD.mean(dim=2, keepdim=True)
    if landmarks_BKPRD.shape[3] == 1:
        s_BKGP = q_BKGD @ landmarks_BKPRD.squeeze(3).transpose(2, 3)
    else:
        low, high = landmarks_BKPRD.unbind(dim=3)
        s_BKGP = q_BKGD.clamp(max=0) @ low.transpose(2, 3) + q_BKGD.clamp(min=0) @ high.transpose(
            2, 3
        )
    if score == "group_mean":
        return s_BKGP.squeeze(2)
    scaled = s_BKGP * q_BKGD.shape[-1] ** -0.5
    scaled = scaled.masked_fill(~candidate_BP[:, None, None, :], torch.finfo(scaled.dtype).min)
    share_BKGP: Tensor = scaled.softmax(dim=-1)
    return share_BKGP.amax(dim=2)


def choose_pages(
    scores_BKP: Tensor, pages_B: Tensor, keep_B: Tensor, first: int, last: int, width: int
) -> Tensor:
    """Keep each sequence's reserved pages and its best others.

    Args:
        scores_BKP: scores of all pages.
        pages_B: pages in use of each sequence, the partial one included (at least 1).
        keep_B: pages to keep of each sequence, reserved ones counted; at least
            min(first + last, pages), at most pages.
        first, last: reserved pages at each end.
        width: W, the largest of `keep_B`.

    Returns:
        [B, K, W] page indices in ascending order; P where a sequence keeps fewer than W.
        Ties go to the lower page index.
    """
    P = scores_BKP.shape[-1]
    index_P = torch.arange(P, device=scores_BKP.device)
    end_B1 = pages_B[:, None]
    reserved_BP = (index_P < first) | (index_P >= end_B1 - last)
    unused_BP = index_P >= end_B1
    ranked = scores_BKP.masked_fill(reserved_BP[:, None, :], INF)
    ranked = ranked.masked_fill(unused_BP[:, None, :], -INF)
    order_BKW = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :width]
    surplus_BW = torch.arange(width, device=scores_BKP.device) >= keep_B[:, None]
    return order_BKW.masked_fill(surplus_BW[:, None, :], P).sort(dim=-1).values


def page_choice(
    q_BKGD: Tensor,
    marks_NKRD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    page_size: int,
    first: int,
    last: int,
    width: int,
    score: Score,
) -> Tensor:
    """Score the landmarks of a paged cache and choose: `page_scores`, then `choose_pages`.

    Args:
        marks_NKRD: a landmark for each physical page and KV head; only those of full pages that
            are not reserved are looked at.
        table_BP: physical page of each logical page (any valid row where unused).
        lengths_B: tokens in the cache, the current one included; 0 for an empty slot.
        keep_B: pages to keep of each sequence, reserved ones counted. What a sequence does not
            have is not kept; reserved pages are kept whatever it says.
        width: W, at least the largest of `keep_B`, the reserved pages, at most P.

    Returns:
        [B, K, W] page indices in ascending order; P where a sequence keeps fewer than W.
    """
    index_P = torch.arange(table_BP.shape[1], device=table_BP.device)
    count_B = (lengths_B + page_size - 1) // page_size
    candidate_BP = (index_P >= first) & (index_P < count_B[:, None] - last)
    marks_BPKRD = marks_NKRD[table_BP.long()]
    scores_BKP = page_scores(q_BKGD, marks_BPKRD, candidate_BP, score)
    keep_B = keep_B.clamp(min=first + last, max=width).minimum(count_B)
    return choose_pages(scores_BKP, count_B, keep_B, first, last, width)
