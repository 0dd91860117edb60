"""The choice of a full sequence's pages on a GPU: scores by products, best pages by one kernel.

Equal to `naive.chosen_pages`, with scores in float32. Shape suffixes: L tokens of the stream,
T of one sequence, n of a chunk, H query heads, K KV heads, G query heads of a KV head, P pages,
R rows of a landmark, W words, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sparrow_kernels.sparse_attention.choice.triton import select
from sparrow_kernels.sparse_attention.naive import landmarks_of
from sparrow_kernels.sparse_attention.rule import BITS, PageBits, PageRule

MOST_SCORES = 1 << 26
"""Scores of a chunk of rows (256 MB); four more such tensors for the maximum over softmaxes."""


@torch.no_grad()
def choose(
    q_LHD: Tensor, k_LKD: Tensor, offsets: Sequence[int], prompts: Sequence[int], rule: PageRule
) -> PageBits:
    """The bits of `naive.chosen_pages`."""
    L, K, _ = k_LKD.shape
    longest = max(end - start for start, end in pairwise(offsets))
    words = -(-longest // (rule.page_size * BITS))
    words_KWL = torch.empty((K, words, L), dtype=torch.int32, device=k_LKD.device)
    for (start, end), prompt in zip(pairwise(offsets), prompts, strict=True):
        part = slice(start, end)
        _of_one(q_LHD[part], k_LKD[part], words_KWL[..., part], prompt, rule)
    return PageBits(words_KWL, rule.page_size)


def _of_one(q_THD: Tensor, k_TKD: Tensor, words_KWT: Tensor, prompt: int, rule: PageRule) -> None:
    T, K, _ = k_TKD.shape
    length_T = torch.arange(1, T + 1)
    pages_T = -(-length_T // rule.page_size)
    keep_T = torch.minimum(rule.keep_N[length_T], pages_T)
    keep_T[:prompt] = pages_T[:prompt]
    sparse_T = keep_T < pages_T
    keep = keep_T.to(torch.int32).to(k_TKD.device)
    marks_PKRD: Tensor | None = None
    step = max(MOST_SCORES // (K * int(pages_T[-1])), 1)
    for start in range(0, T, step):
        end = min(start + step, T)
        pages = int(pages_T[end - 1])
        scores = None
        if bool(sparse_T[start:end].any()):
            if marks_PKRD is None:
                marks_PKRD = landmarks_of(k_TKD, rule)
            scores = _scores(q_THD[start:end], marks_PKRD[:pages], start, rule)
        args = (start, pages, rule.page_size, rule.first, rule.last)
        select(scores, keep[start:end], words_KWT[..., start:end], *args)


def _scores(q_nHD: Tensor, marks_PKRD: Tensor, start: int, rule: PageRule) -> Tensor:
    """[K, n, P] float32, contiguous."""
    n, _, D = q_nHD.shape
    P, K = marks_PKRD.shape[:2]
    q_KGnD = q_nHD.unflatten(1, (K, -1)).permute(1, 2, 0, 3).float()
    if rule.score == "group_mean":
        q_KGnD = q_KGnD.mean(dim=1, keepdim=True)
    q_KmD = q_KGnD.flatten(1, 2)
    marks = [mark.float() for mark in marks_PKRD.permute(2, 1, 3, 0)]
    if len(marks) == 1:
        scores_KmP = torch.bmm(q_KmD, marks[0])
    else:
        low, high = marks
        scores_KmP = torch.bmm(q_KmD.clamp(max=0), low).baddbmm_(q_KmD.clamp(min=0), high)
    if rule.score == "group_mean":
        return scores_KmP
    index_P = torch.arange(P, device=q_nHD.device)
    pages_n1 = torch.arange(start, start + n, device=q_nHD.device)[:, None] // rule.page_size + 1
    other_nP = (index_P < rule.first) | (index_P >= pages_n1 - rule.last)
    scores_KGnP = scores_KmP.mul_(D**-0.5).view(K, -1, n, P)
    scores_KGnP.masked_fill_(other_nP, torch.finfo(torch.float32).min)
    return scores_KGnP.softmax(dim=-1).amax(dim=1)
