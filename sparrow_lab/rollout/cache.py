"""The paged KV cache: one pool of pages for all layers, in which a row's pages lie side by side.

A *row* belongs to one sequence, or to one prompt that several samples share. Because the pages of
a row follow each other, dense attention reads a row as it lies, without a gather; sparse attention
still picks single pages out of the pool by their numbers.

What is shared: the full pages of a prompt with several samples are stored once, in a row of the
prompt, and every sample reads them there. A sample's own row goes on from the first token behind
them, so it starts with a copy of the prompt's last, partly filled page (fewer tokens than a page).
Landmarks of shared pages are copied into each sample's row of landmarks: one or two vectors a page.
A prompt with a single sample is written straight into the sample's row.

Rows in use are always the first ones: who gives up a row fills it with the last (`move`).

Shape suffixes: L layers, R rows, K KV heads, P pages of a row, S slots of a page, T = P * S tokens
of a row, N pages of the pool, D head dim, E vectors of a landmark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.landmarks import landmark_rows, page_landmarks
from sparrow_kernels.landmarks.naive import Landmark

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Region:
    """Rows of one kind.

    Attributes:
        kv_L2XTD: keys and values; X = row * K + KV head.
        first: number in the pool of the region's first page.
        pages: pages of a row, P.
        heads: K.
    """

    kv_L2XTD: Tensor
    first: int
    pages: int
    heads: int

    def by_row(self) -> Tensor:
        """The same memory as [L, 2, R, K, T, D]."""
        rows: Tensor = self.kv_L2XTD.unflatten(2, (-1, self.heads))
        return rows

    def move(self, sources: Ints, targets: Ints, tokens: int) -> None:
        """Copy the first `tokens` of rows over others; no row is both source and target."""
        rows = self.by_row()
        at, to = torch.from_numpy(sources), torch.from_numpy(targets)
        rows[:, :, to, :, :tokens] = rows[:, :, at, :, :tokens]

    def first_pages(self, rows: Ints) -> Ints:
        """Number in the pool of the first page of each (row, KV head), [rows * K]."""
        heads: Ints = (rows[:, None] * self.heads + np.arange(self.heads)).reshape(-1)
        return self.first + heads * self.pages


class RowCache:
    """Keys, values and landmarks of all layers.

    Args:
        prompt_rows, prompt_pages: rows for shared prompts (0 if nothing is shared), and the pages
            of the longest.
        rows, row_pages: sequences decoded at once, and the pages of the longest.
        columns: pages of the longest sequence, its prompt counted.
        landmark: None keeps no landmarks.
        sparse_from: first layer that chooses pages; layers before it keep no landmarks.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        page_size: int,
        *,
        prompt_rows: int,
        prompt_pages: int,
        rows: int,
        row_pages: int,
        columns: int,
        landmark: Landmark | None,
        sparse_from: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        L, K, D = shape
        S = page_size
        self.page_size, self.landmark, self.sparse_from = S, landmark, sparse_from
        shared = prompt_rows * K * prompt_pages
        own = rows * K * row_pages
        # zeros, not empty: a masked slot still enters a product with weight 0, and 0 * NaN is NaN
        self.pool_L2NC = torch.zeros((L, 2, shared + own, S * D), dtype=dtype, device=device)

        def region(first: int, count: int, pages: int) -> Region:
            part = self.pool_L2NC[:, :, first : first + count]
            return Region(part.view(L, 2, -1, pages * S, D), first, pages, K)

        self.prompts = region(0, shared, max(prompt_pages, 1))
        self.own = region(shared, own, row_pages)
        self.marks_LXPED: Tensor | None = None
        self.prompt_marks_LXPED: Tensor | None = None
        if landmark is not None:
            E = landmark_rows(landmark)
            marks = (L - sparse_from, rows * K, columns, E, D)
            self.marks_LXPED = torch.zeros(marks, dtype=dtype, device=device)
            marks = (L - sparse_from, prompt_rows * K, prompt_pages, E, D)
            self.prompt_marks_LXPED = torch.zeros(marks, dtype=dtype, device=device)

    def write_prompt(self, region: Region, row: int, kv_L2KTD: Tensor) -> None:
        """Write a prompt from slot 0 of a row, with the landmarks of its full pages."""
        length = kv_L2KTD.shape[3]
        region.by_row()[:, :, row, :, :length] = kv_L2KTD
        marks = self.prompt_marks_LXPED if region is self.prompts else self.marks_LXPED
        full = length // self.page_size
        if marks is not None and full:
            keys = kv_L2KTD[self.sparse_from :, 0, :, : full * self.page_size]
            marks = marks.unflatten(1, (-1, region.heads))
            marks[:, row, :, :full] = self._landmarks(keys.unflatten(2, (full, self.page_size)))

    def open(self, prompt_row: int, rows: slice, shared: int, length: int) -> None:
        """Let rows go on from a shared prompt: copy what lies behind its full pages."""
        if length > shared:
            tail = self.prompts.by_row()[:, :, prompt_row, None, :, shared:length]
            self.own.by_row()[:, :, rows, :, : length - shared] = tail
        if self.marks_LXPED is not None and self.prompt_marks_LXPED is not None and shared:
            full, K = shared // self.page_size, self.own.heads
            marks = self.prompt_marks_LXPED.unflatten(1, (-1, K))[:, prompt_row, None, :, :full]
            self.marks_LXPED.unflatten(1, (-1, K))[:, rows, :, :full] = marks

    def fill(self, rows: Ints, pages: Ints, columns: Ints) -> None:
        """Make the landmarks of pages whose last slot has been filled.

        Args:
            rows: each sequence whose page is full.
            pages: that page, counted in its row.
            columns: that page, counted in the sequence.
        """
        if not len(rows):
            return
        assert self.marks_LXPED is not None
        own, K = self.own, self.own.heads
        paged = own.by_row().unflatten(4, (own.pages, self.page_size))
        at, page, column = (torch.from_numpy(x) for x in (rows, pages, columns))
        keys_XLKSD = paged[self.sparse_from :, 0].permute(1, 3, 0, 2, 4, 5)[at, page]
        marks = self.marks_LXPED.unflatten(1, (-1, K)).permute(1, 3, 0, 2, 4, 5)
        marks[at, column] = self._landmarks(keys_XLKSD.unsqueeze(3)).squeeze(3)

    def _landmarks(self, keys: Tensor) -> Tensor:
        """[..., P, S, D] -> [..., P, E, D]."""
        assert self.landmark is not None
        size, D = keys.shape[-2:]
        made = page_landmarks(keys.reshape(-1, 1, size, D), self.landmark)
        return made.reshape(*keys.shape[:-2], -1, D)

    def move(self, sources: Ints, targets: Ints, tokens: int, columns: int) -> None:
        """Let sequences change over to the rows of others that have ended.

        Args:
            tokens, columns: how much of a row is in use, and how many pages of a sequence.
        """
        self.own.move(sources, targets, tokens)
        if self.marks_LXPED is not None:
            marks = self.marks_LXPED.unflatten(1, (-1, self.own.heads))
            at, to = torch.from_numpy(sources), torch.from_numpy(targets)
            marks[:, to, :, :columns] = marks[:, at, :, :columns]

    def move_prompt(self, source: int, target: int) -> None:
        """Let a shared prompt change over to the row of one that is no longer needed."""
        rows = self.prompts.by_row()
        rows[:, :, target] = rows[:, :, source]
        if self.prompt_marks_LXPED is not None:
            marks = self.prompt_marks_LXPED.unflatten(1, (-1, self.prompts.heads))
            marks[:, target] = marks[:, source]
