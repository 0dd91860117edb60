"""Which sequence decodes in which row, and how rows share prompts.

Shape suffixes: A rows in use, K KV heads, X = A * K (row, KV head) pairs, Y (prompt, KV head)
pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.paged_decode import SharedRows
from sparrow_lab.rollout.cache import RowCache

Ints = npt.NDArray[np.int64]


def _none() -> Ints:
    return np.zeros(0, np.int64)


@dataclass
class OpenPrompt:
    """A shared prompt in use: its place in the list is its row in the cache."""

    index: int
    length: int
    waiting: int
    """Samples that have not been started."""
    hidden: Tensor
    """Final hidden state of its last token."""


@dataclass
class Rows:
    """The sequences in the rows 0 .. A - 1, each array [A].

    All sequences grow by one token a step, so that their lengths are kept as they were when a
    sequence last came or went, and `steps` counts what has been added since.

    Attributes:
        sample: which sample of the rollout.
        shared: tokens in the pages of a shared prompt, before those of the row.
        prompt: row of that prompt.
        token: the token fed next.
    """

    sample: Ints = field(default_factory=_none)
    shared: Ints = field(default_factory=_none)
    prompt: Ints = field(default_factory=_none)
    token: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    base_length: Ints = field(default_factory=_none)
    base_generated: Ints = field(default_factory=_none)
    steps: int = 0

    def __len__(self) -> int:
        return len(self.sample)

    @property
    def length(self) -> Ints:
        """Tokens in the cache; also the position of the token fed next."""
        return self.base_length + self.steps

    @property
    def generated(self) -> Ints:
        """Generated tokens, the one fed next included."""
        return self.base_generated + self.steps

    def add(self, sample: Ints, length: Ints, shared: Ints, prompt: Ints, token: Tensor) -> None:
        """Take new sequences into the next rows, each with its first generated token."""
        self._settle()
        self.sample = np.concatenate([self.sample, sample])
        self.shared = np.concatenate([self.shared, shared])
        self.prompt = np.concatenate([self.prompt, prompt])
        self.token = torch.cat([self.token.to(token.device), token])
        self.base_length = np.concatenate([self.base_length, length])
        self.base_generated = np.concatenate([self.base_generated, np.ones_like(sample)])

    def drop(self, over: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
        """Let sequences go; the last ones take over their rows.

        Returns:
            Of every row that is left, the one it was before; and (sources, targets) of those that
            moved.
        """
        self._settle()
        left = int(len(over) - over.sum())
        targets = np.flatnonzero(over[:left])
        sources = left + np.flatnonzero(~over[left:])
        before = np.arange(left)
        before[targets] = sources
        for name in ("sample", "shared", "prompt", "base_length", "base_generated"):
            setattr(self, name, getattr(self, name)[before])
        self.token = self.token[torch.from_numpy(before).to(self.token.device)]
        return before, sources, targets

    def _settle(self) -> None:
        self.base_length, self.base_generated = self.length, self.generated
        self.steps = 0


@dataclass(frozen=True)
class Layout:
    """What stays the same from step to step until a sequence comes or goes.

    Attributes:
        even: (length, shared) if all sequences have the same length and share as many tokens;
            the length is that at the rows' step 0.
        shared: most tokens of a shared prompt.
        shared_rows: of each layer; None if no prompt is shared.
        shared_page: number in the pool of a sequence's page 0 while that is shared, [X, 1].
        own_page: the same as if its own pages began there, so that a page's number can be
            added, [X, 1].
    """

    even: tuple[int, int] | None
    shared: int
    shared_rows: list[SharedRows] | None
    shared_page: Tensor
    own_page: Tensor


def lay_out(rows: Rows, prompts: int, cache: RowCache) -> Layout:
    """The layout of the present rows, at their step 0; `prompts` are in use."""
    A, K = len(rows), cache.own.heads
    device = cache.pool_L2NC.device
    own = cache.own.first_pages(np.arange(A)) - np.repeat(rows.shared // cache.page_size, K)
    shared = int(rows.shared.max())
    length = int(rows.base_length[0])
    even = bool((rows.base_length == length).all() and (rows.shared == shared).all())
    shared_rows = None
    if shared:
        kv = cache.prompts.kv_L2XTD[:, :, : prompts * K, :shared]
        members = [torch.from_numpy(x).to(device) for x in _members(rows.prompt, prompts, K)]
        both = zip(kv[:, 0].unbind(0), kv[:, 1].unbind(0), strict=True)
        shared_rows = [SharedRows(keys, values, *members) for keys, values in both]
    return Layout(
        (length, shared) if even else None,
        shared,
        shared_rows,
        torch.from_numpy(cache.prompts.first_pages(rows.prompt))[:, None].to(device),
        torch.from_numpy(own)[:, None].to(device),
    )


def _members(prompt_A: Ints, prompts: int, K: int) -> tuple[Ints, Ints]:
    """`row_of_member` and `member_of_row` of `SharedRows`."""
    counts = np.bincount(prompt_A, minlength=prompts)
    most = int(counts.max())
    order = np.argsort(prompt_A, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    heads = np.arange(K)
    member_of_row = (prompt_A[:, None] * K + heads) * most + place[:, None]
    row_of_member = np.zeros(prompts * K * most, np.int64)
    row_of_member[member_of_row] = np.arange(len(prompt_A))[:, None] * K + heads
    return row_of_member, member_of_row.reshape(-1)
