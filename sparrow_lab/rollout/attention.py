"""What the sequences attend to in one decoding step: whole rows, or pages that they choose.

When all sequences have the same length (`Layout.even`, the usual case: prompts of one length,
started together) everything is cut to that length and no mask is needed. Otherwise scores get a
bias, made once a step: 0, or -inf beyond a sequence's end.

Shape suffixes: A rows in use, K KV heads, X = A * K (row, KV head) pairs, T tokens,
G query heads of a KV head, D head dim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.paged_decode import page_decode, row_decode, shared_row_decode
from sparrow_lab.rollout.cache import RowCache
from sparrow_lab.rollout.choice import EvenChoice, UnevenChoice
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
        self.shared = layout.shared_rows
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
        self.pools, self.scale = cache.pool_L2NC.unbind(0), scale
        self.sparse_from = cache.sparse_from
        # the last page is always chosen, so only the end of what is gathered can be unfilled
        kept = keep * cache.page_size - (pages * cache.page_size - length)
        self.tokens = int(kept.max())
        marks = cache.marks_LXPED[:, : len(rows) * cache.own.heads]
        self.bias: Tensor | None = None
        self.choice: EvenChoice | UnevenChoice
        if layout.even:
            self.choice = EvenChoice(marks, layout, schedule, int(pages[0]), int(keep[0]))
        else:
            self.choice = UnevenChoice(marks, layout, schedule, rows, pages, keep)
            self.bias = _bias(np.arange(self.tokens) >= kept[:, None], cache.pool_L2NC)

    def attend(self, i: int, q_XGD: Tensor) -> Tensor:
        """[X, G, D] of layer i."""
        numbers = self.choice(i - self.sparse_from, q_XGD)
        return page_decode(q_XGD, self.pools[i], numbers, self.tokens, self.scale, self.bias)
