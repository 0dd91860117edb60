"""What the sequences attend to in one decoding step: whole rows, or pages that they choose.

When all sequences have the same length (`Layout.even`, the usual case: prompts of one length,
started together) everything is cut to that length and no mask is needed. Otherwise scores get a
bias, made once a step: 0, or -inf beyond a sequence's end.

Shape suffixes: A rows in use, K KV heads, X = A * K (row, KV head) pairs, P pages, W chosen pages,
G query heads of a KV head, D head dim, E vectors of a landmark.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.page_choice import choose_evenly, choose_pages, page_scores
from sparrow_kernels.paged_decode import SharedRows, page_decode, row_decode, shared_row_decode
from sparrow_lab.rollout.cache import RowCache
from sparrow_lab.rollout.rows import Layout, Rows
from sparrow_lab.sparsity.schedule import Schedule

Ints = npt.NDArray[np.int64]


def _bias(beyond_AT: npt.NDArray[np.bool_], like: Tensor) -> Tensor:
    """[A, 1, 1, T]: -inf where True, else 0; in the dtype of scores."""
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    hidden = torch.from_numpy(beyond_AT).to(like.device)
    bias = torch.zeros(hidden.shape, dtype=wide, device=like.device)
    return bias.masked_fill_(hidden, float("-inf"))[:, None, None]


class WholeRows:
    """Attention to everything, and the place that each row's new token goes to.

    Made before the rows have grown by that token.
    """

    def __init__(self, cache: RowCache, rows: Rows, layout: Layout, scale: float) -> None:
        K, pool = cache.own.heads, cache.pool_L2NC
        if layout.even:
            longest = layout.even[0] - layout.even[1] + rows.steps + 1
        else:
            own = rows.length - rows.shared + 1
            longest = int(own.max())
        kv = cache.own.kv_L2XTD[:, :, : len(rows) * K]
        seen = kv[:, :, :, :longest]
        self.keys, self.values = seen[:, 0].unbind(0), seen[:, 1].unbind(0)
        self.scale = scale
        self.shared: list[SharedRows] | None = None
        if layout.row_of_member is not None and layout.member_of_row is not None:
            first = cache.prompts.kv_L2XTD[:, :, : layout.prompt_heads, : layout.shared]
            self.shared = [
                SharedRows(keys, values, layout.row_of_member, layout.member_of_row)
                for keys, values in zip(first[:, 0].unbind(0), first[:, 1].unbind(0), strict=True)
            ]
        self.bias = None
        self.place: tuple[Tensor, Tensor] | None = None
        if layout.even:
            self.slots = kv[:, :, :, longest - 1].unbind(0)
            return
        self.slots = kv.unbind(0)
        at = torch.from_numpy(np.repeat(own - 1, K)).to(pool.device)
        self.place = torch.arange(len(at), device=pool.device), at
        beyond = np.arange(longest) >= own[:, None]
        unshared = np.arange(layout.shared) >= rows.shared[:, None]
        self.bias = _bias(np.concatenate([unshared, beyond], axis=1), pool)

    def write(self, i: int, kv_X2D: Tensor) -> None:
        """Write each row's new key and value in layer i."""
        kv_2XD = kv_X2D.transpose(0, 1)
        if self.place is None:
            self.slots[i].copy_(kv_2XD)
        else:
            self.slots[i][:, self.place[0], self.place[1]] = kv_2XD

    def attend(self, i: int, q_XGD: Tensor) -> Tensor:
        """[X, G, D] of layer i."""
        keys, values = self.keys[i], self.values[i]
        if self.shared is None:
            return row_decode(q_XGD, keys, values, self.scale, self.bias)
        return shared_row_decode(q_XGD, keys, values, self.shared[i], self.scale, self.bias)


class ChosenPages:
    """Attention to the pages that each KV head chooses within its sequence's budget.

    Args:
        length: tokens of each sequence, the one being fed included; pages: its pages; keep: how
            many of them it keeps. Each [A], or [1] for all sequences of an even layout.
    """

    def __init__(
        self,
        cache: RowCache,
        rows: Rows,
        layout: Layout,
        schedule: Schedule,
        scale: float,
        length: Ints,
        pages: Ints,
        keep: Ints,
    ) -> None:
        assert cache.marks_LXPED is not None
        size, device = cache.page_size, cache.pool_L2NC.device
        self.cache, self.layout, self.scale = cache, layout, scale
        self.score = schedule.score
        self.first, self.last = schedule.reserved_pages()
        self.even = layout.even is not None
        X = len(rows) * cache.own.heads
        self.width, self.most = int(keep.max()), int(pages.max())
        # the last page is always chosen, so only the end of what is gathered can be unfilled
        kept = keep * size - (pages * size - length)
        self.tokens = int(kept.max())
        self.shared_pages: int | Tensor
        if layout.even:
            self.shared_pages = layout.even[1] // size
            self.marks = cache.marks_LXPED[:, :X, self.first : self.most - self.last].unbind(0)
            return
        self.marks = cache.marks_LXPED[:, :X, : self.most].unbind(0)
        self.bias = _bias(np.arange(self.tokens) >= kept[:, None], cache.pool_L2NC)
        self.pages_A, self.keep_A = (torch.from_numpy(x).to(device) for x in (pages, keep))
        index = torch.arange(self.most, device=device)
        self.candidate_AP = (index >= self.first) & (index < self.pages_A[:, None] - self.last)
        self.shared_pages = torch.from_numpy(rows.shared // size).to(device)[:, None, None]

    def attend(self, i: int, q_XGD: Tensor) -> Tensor:
        """[X, G, D] of layer i."""
        marks_XPED = self.marks[i - self.cache.sparse_from]
        chosen = self._evenly(q_XGD, marks_XPED) if self.even else self._each(q_XGD, marks_XPED)
        pool = self.cache.pool_L2NC[i]
        bias = None if self.even else self.bias
        return page_decode(q_XGD, pool, chosen, self.tokens, self.scale, bias)

    def _evenly(self, q_XGD: Tensor, marks_XPED: Tensor) -> Tensor:
        everything = torch.ones((1, 1), dtype=torch.bool, device=q_XGD.device)
        scores = page_scores(q_XGD[:, None], marks_XPED[:, :, None], everything, self.score)
        best = self.width - self.first - self.last
        chosen = choose_evenly(scores.squeeze(1), best, self.first, self.last)
        return self._numbers(chosen, self.layout.shared_page, self.layout.own_page)

    def _each(self, q_XGD: Tensor, marks_XPED: Tensor) -> Tensor:
        A = len(self.pages_A)
        q_AKGD = q_XGD.unflatten(0, (A, -1))
        marks_APKED = marks_XPED.unflatten(0, (A, -1)).transpose(1, 2)
        scores = page_scores(q_AKGD, marks_APKED, self.candidate_AP, self.score)
        args = (self.pages_A, self.keep_A, self.first, self.last, self.width)
        chosen = choose_pages(scores, *args)
        # no page is named by the number of all pages: take the last, which the bias hides
        chosen = torch.minimum(chosen, self.pages_A[:, None, None] - 1)
        K = chosen.shape[1]
        shared, own = (x.view(A, K, 1) for x in (self.layout.shared_page, self.layout.own_page))
        return self._numbers(chosen, shared, own).flatten(0, 1)

    def _numbers(self, chosen: Tensor, shared: Tensor, own: Tensor) -> Tensor:
        """Numbers in the pool of a sequence's pages."""
        if self.layout.row_of_member is None:
            return chosen + own
        return chosen + torch.where(chosen < self.shared_pages, shared, own)
