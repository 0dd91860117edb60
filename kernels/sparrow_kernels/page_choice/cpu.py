"""Page choice for sequences that all have the same pages and keep equally many.

Only the pages between the reserved ones are scored and ranked. Shape suffixes: X (sequence, KV
head) pairs, G query heads of a KV head, C candidate pages, E vectors of a landmark, D head dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.page_choice.naive import Score

FEW = 64
"""So few candidates are sorted as fast as the best of them are found."""


def score_evenly(q_XGD: Tensor, marks_XCED: Tensor, score: Score) -> Tensor:
    """[X, C]: `naive.page_scores` where every page is a candidate."""
    if score == "group_mean":
        q_XGD = q_XGD.mean(dim=1, keepdim=True)
    marks = [mark.transpose(1, 2) for mark in marks_XCED.unbind(2)]
    if len(marks) == 1:
        scores_XGC = torch.bmm(q_XGD, marks[0])
    else:
        low, high = marks
        scores_XGC = torch.bmm(q_XGD.clamp(max=0), low).baddbmm_(q_XGD.clamp(min=0), high)
    if score == "group_mean":
        return scores_XGC.squeeze(1)
    share_XGC: Tensor = (scores_XGC * q_XGD.shape[-1] ** -0.5).softmax(dim=-1)
    return share_XGC.amax(dim=1)


def best_evenly(scores_XC: Tensor, best: int) -> Tensor:
    """The candidates that `naive.choose_pages` keeps beside the reserved pages.

    Args:
        best: how many; 1 or more, fewer than C.

    Returns:
        [X, best] indices into the candidates, the best first. Ties go to the lower one.
    """
    if scores_XC.shape[1] > FEW:
        values, chosen = scores_XC.topk(best + 1, dim=-1)
        # topk takes any of equal ones, which matters only between the last kept and the next
        if bool((values[:, -2] != values[:, -1]).all()):
            return chosen[:, :best]
    return scores_XC.sort(dim=-1, descending=True, stable=True).indices[:, :best]
