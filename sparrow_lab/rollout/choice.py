"""Which pages of the pool each KV head attends to in one decoding step.

Shape suffixes: A rows in use, K KV heads, X = A * K (row, KV head) pairs, P pages of a sequence,
W chosen pages, G query heads of a KV head, E vectors of a landmark, D head dim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.page_choice import best_evenly, choose_pages, page_scores, score_evenly
from sparrow_lab.rollout.rows import Layout, Rows
from sparrow_lab.sparsity.schedule import Schedule

Ints = npt.NDArray[np.int64]


class EvenChoice:
    """All sequences have the same pages and keep equally many, not all of them.

    Reserved pages are known before anything is scored, and only those between them are scored.
    """

    def __init__(
        self, marks_LXPED: Tensor, layout: Layout, schedule: Schedule, pages: int, keep: int
    ) -> None:
        assert layout.even is not None
        first, last = schedule.reserved_pages()
        self.score = schedule.score
        self.marks = marks_LXPED[:, :, first : pages - last].unbind(0)
        self.best = keep - first - last
        full = layout.even[1] // schedule.page_size
        self.shared = full if layout.shared_rows is not None else None
        self.first, self.layout = first, layout
        index = torch.arange(pages, device=marks_LXPED.device)
        self.ahead = self._numbers(index[:first])
        self.behind = self._numbers(index[pages - last :])

    def __call__(self, layer: int, q_XGD: Tensor) -> Tensor:
        """Numbers in the pool [X, W]: the first pages, the best of the others, the last ones."""
        if not self.best:
            return torch.cat([self.ahead, self.behind], dim=1)
        best = best_evenly(score_evenly(q_XGD, self.marks[layer], self.score), self.best)
        return torch.cat([self.ahead, self._numbers(best + self.first), self.behind], dim=1)

    def _numbers(self, pages: Tensor) -> Tensor:
        """Numbers in the pool of a sequence's pages, [X, ...]."""
        if self.shared is None:
            return pages + self.layout.own_page
        base = torch.where(pages < self.shared, self.layout.shared_page, self.layout.own_page)
        return base + pages


class UnevenChoice:
    """Sequences of any lengths; some may keep all their pages."""

    def __init__(
        self,
        marks_LXPED: Tensor,
        layout: Layout,
        schedule: Schedule,
        rows: Rows,
        pages: Ints,
        keep: Ints,
    ) -> None:
        A, device = len(rows), marks_LXPED.device
        most = int(pages.max())
        self.score = schedule.score
        self.first, self.last = schedule.reserved_pages()
        marks_LAKPED = marks_LXPED[:, :, :most].unflatten(1, (A, -1))
        self.marks = marks_LAKPED.transpose(2, 3).unbind(0)
        self.width = int(keep.max())
        self.pages_A, self.keep_A = (torch.from_numpy(x).to(device) for x in (pages, keep))
        index = torch.arange(most, device=device)
        self.candidate_AP = (index >= self.first) & (index < self.pages_A[:, None] - self.last)
        self.shared_A11 = torch.from_numpy(rows.shared // schedule.page_size)[:, None, None]
        self.shared_A11 = self.shared_A11.to(device)
        self.shared_page, self.own_page = (
            x.view(A, -1, 1) for x in (layout.shared_page, layout.own_page)
        )

    def __call__(self, layer: int, q_XGD: Tensor) -> Tensor:
        """Numbers in the pool [X, W], ascending; any page where a sequence keeps fewer than W."""
        q_AKGD = q_XGD.unflatten(0, (len(self.pages_A), -1))
        scores = page_scores(q_AKGD, self.marks[layer], self.candidate_AP, self.score)
        args = (self.pages_A, self.keep_A, self.first, self.last, self.width)
        chosen_AKW = choose_pages(scores, *args)
        # "no page" is beyond the sequence: take its last, which attention's bias hides
        chosen_AKW = torch.minimum(chosen_AKW, self.pages_A[:, None, None] - 1)
        base = torch.where(chosen_AKW < self.shared_A11, self.shared_page, self.own_page)
        return (base + chosen_AKW).flatten(0, 1)
