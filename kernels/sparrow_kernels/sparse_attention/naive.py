"""The definition of sparse attention over full sequences, in plain torch.

Row t of a sequence is what decode computes when token t is fed: t + 1 tokens are in the cache, and
each KV head attends to the pages that the rule lets it choose. Rows of the prompt, and rows whose
pages all fit, attend to everything before them. Sequences lie end to end in one stream.

Shape suffixes: L tokens of the stream, T of one sequence, H query heads, K KV heads, G query heads
of a KV head, P pages, R rows of a landmark, W chosen pages, D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sparrow_kernels.landmarks.naive import landmark_rows, page_landmarks
from sparrow_kernels.page_choice.naive import choose_pages, page_scores
from sparrow_kernels.sparse_attention.rule import PageRule


def chosen_pages(
    q_LHD: Tensor, k_LKD: Tensor, offsets: Sequence[int], prompts: Sequence[int], rule: PageRule
) -> Tensor:
    """Which pages each token attends to.

    Args:
        q_LHD, k_LKD: queries and keys after norm and rotation; query head h reads KV head
            h // (H // K).
        offsets: first token of each sequence, and the end of the last.
        prompts: tokens of each sequence's prompt.

    Returns:
        [K, L, P] truth values for the P pages of the longest sequence.
    """
    K = k_LKD.shape[1]
    longest = max(end - start for start, end in pairwise(offsets))
    P = -(-longest // rule.page_size)
    out_KLP = torch.zeros((K, len(q_LHD), P), dtype=torch.bool, device=q_LHD.device)
    for (start, end), prompt in zip(pairwise(offsets), prompts, strict=True):
        chosen_KTP = _of_one(q_LHD[start:end], k_LKD[start:end], prompt, rule)
        out_KLP[:, start:end, : chosen_KTP.shape[2]] = chosen_KTP
    return out_KLP


def _of_one(q_THD: Tensor, k_TKD: Tensor, prompt: int, rule: PageRule) -> Tensor:
    T, K, D = k_TKD.shape
    S, device = rule.page_size, k_TKD.device
    length_T = torch.arange(1, T + 1, device=device)
    pages_T = -(-length_T // S)
    P = -(-T // S)
    index_P = torch.arange(P, device=device)
    keep_T = torch.minimum(rule.keep_N.to(device)[length_T], pages_T)
    keep_T[:prompt] = pages_T[:prompt]
    candidate_TP = (index_P >= rule.first) & (index_P < pages_T[:, None] - rule.last)
    scores_TKP = page_scores(
        q_THD.view(T, K, -1, D),
        landmarks_of(k_TKD, rule).expand(T, -1, -1, -1, -1),
        candidate_TP,
        rule.score,
    )
    width = int(keep_T.max())
    chosen_TKW = choose_pages(scores_TKP, pages_T, keep_T, rule.first, rule.last, width)
    chosen_TKP = torch.zeros((T, K, P + 1), dtype=torch.bool, device=device)
    return chosen_TKP.scatter_(2, chosen_TKW, True)[..., :P].transpose(0, 1)


def landmarks_of(k_TKD: Tensor, rule: PageRule) -> Tensor:
    """[P, K, R, D] landmarks of a sequence's pages; 0 for the last one while it is not full.

    A full page never changes, so what holds at the end held as soon as the page was full. Before
    that it is the last page, which is reserved: its landmark is not looked at.
    """
    T, K, D = k_TKD.shape
    full = T // rule.page_size
    marks = k_TKD.new_zeros((-(-T // rule.page_size), K, landmark_rows(rule.landmark), D))
    paged = k_TKD[: full * rule.page_size].view(full, rule.page_size, K, D).transpose(1, 2)
    marks[:full] = page_landmarks(paged, rule.landmark)
    return marks


def sparse_attention(
    q_LHD: Tensor,
    k_LKD: Tensor,
    v_LKD: Tensor,
    chosen_KLP: Tensor,
    offsets: Sequence[int],
    page_size: int,
    scale: float,
) -> Tensor:
    """Attend from every token to the tokens, up to itself, of its chosen pages.

    Memory is that of one sequence's weights for all heads. Gradients go to q, k and v; the choice
    has none.

    Returns:
        [L, H, D] in the dtype of q; softmax in float32 or better.
    """
    group = q_LHD.shape[1] // k_LKD.shape[1]
    outs = []
    for start, end in pairwise(offsets):
        T = end - start
        seen_KTT = chosen_KLP[:, start:end].repeat_interleave(page_size, dim=2)[..., :T].tril()
        q_HTD, k_HTD, v_HTD = (
            x[start:end].repeat_interleave(times, dim=1).transpose(0, 1)
            for x, times in ((q_LHD, 1), (k_LKD, group), (v_LKD, group))
        )
        scores_HTT = (q_HTD * scale) @ k_HTD.transpose(1, 2)
        if scores_HTT.dtype != torch.float64:
            scores_HTT = scores_HTT.float()
        hidden_HTT = ~seen_KTT.repeat_interleave(group, dim=0)
        weights = scores_HTT.masked_fill(hidden_HTT, float("-inf")).softmax(dim=-1)
        outs.append((weights.to(v_LKD.dtype) @ v_HTD).transpose(0, 1))
    return torch.cat(outs)
