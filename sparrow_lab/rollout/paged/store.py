"""The tensors behind page numbers: keys, values and landmarks of every page, in all layers.

Shape suffixes: L layers, N pages, n some pages, K KV heads, S slots of a page, D head dim, R rows
of a landmark, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sparrow_kernels.landmarks import landmark_rows, page_landmarks
from sparrow_kernels.landmarks.naive import Landmark


@dataclass(frozen=True)
class Layout:
    """What a page is, in all layers together.

    Attributes:
        landmark: None keeps no landmarks.
        sparse_from: first layer that chooses pages; layers before it keep no landmarks.
    """

    layers: int
    kv_heads: int
    head_dim: int
    page_size: int
    landmark: Landmark | None
    sparse_from: int
    dtype: torch.dtype

    @property
    def marked_layers(self) -> int:
        """Layers that keep landmarks."""
        return 0 if self.landmark is None else self.layers - self.sparse_from

    @property
    def mark_rows(self) -> int:
        """Vectors of a landmark; 0 without landmarks."""
        return 0 if self.landmark is None else landmark_rows(self.landmark)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page in all layers, its landmarks counted."""
        head = self.head_dim * self.kv_heads * self.dtype.itemsize
        return head * (
            2 * self.layers * self.page_size + max(self.marked_layers, 0) * self.mark_rows
        )


@dataclass(frozen=True)
class HostPages:
    """A copy of pages in host memory, bit for bit; pinned where they came from a GPU."""

    kv_L2nKSD: Tensor
    marks_LnKRD: Tensor | None

    def __len__(self) -> int:
        return self.kv_L2nKSD.shape[2]


class PageStore:
    """Pages of all layers on one device."""

    def __init__(self, layout: Layout, pages: int, device: torch.device) -> None:
        K, S, D = layout.kv_heads, layout.page_size, layout.head_dim
        self.layout, self.pages, self.device = layout, pages, device
        # zeros, not empty: a masked slot still enters a product with weight 0, and 0 * NaN is NaN
        shape = (layout.layers, 2, pages, K, S, D)
        self.kv_L2NKSD = torch.zeros(shape, dtype=layout.dtype, device=device)
        both = self.kv_L2NKSD.unbind(1)
        self.keys, self.values = both[0].unbind(0), both[1].unbind(0)
        self.marks_LNKRD: Tensor | None = None
        if layout.marked_layers > 0:
            marks = (layout.marked_layers, pages, K, layout.mark_rows, D)
            self.marks_LNKRD = torch.zeros(marks, dtype=layout.dtype, device=device)

    def marks(self, layer: int) -> Tensor | None:
        """[N, K, R, D] of a layer that chooses pages; None for the others."""
        at = layer - self.layout.sparse_from
        return None if self.marks_LNKRD is None or at < 0 else self.marks_LNKRD[at]

    def write_prompt(self, pages: Sequence[int], kv_L2KTD: Tensor) -> None:
        """Write a prompt into fresh pages, with the landmarks of those that it fills."""
        T, S = kv_L2KTD.shape[3], self.layout.page_size
        full = T // S
        L, two, K, _, D = kv_L2KTD.shape
        at = torch.tensor(pages, device=self.device)
        if full:
            paged = kv_L2KTD[:, :, :, : full * S].reshape(L, two, K, full, S, D).transpose(2, 3)
            self.kv_L2NKSD[:, :, at[:full]] = paged
            if self.marks_LNKRD is not None and self.layout.landmark is not None:
                keys = paged[self.layout.sparse_from :, 0].reshape(-1, K, S, D)
                made = page_landmarks(keys, self.layout.landmark)
                self.marks_LNKRD[:, at[:full]] = made.unflatten(0, (-1, full))
        if T % S:
            self.kv_L2NKSD[:, :, pages[full], :, : T % S] = kv_L2KTD[:, :, :, full * S :]

    def copy_page(self, source: int, target: int) -> None:
        """Let a sample go on in its own copy of a partly filled page."""
        self.kv_L2NKSD[:, :, target] = self.kv_L2NKSD[:, :, source]

    def save(self, pages: Sequence[int]) -> HostPages:
        """Copy pages to host memory; they may be given to others afterwards."""
        at = torch.tensor(pages, dtype=torch.long, device=self.device)
        marks = None
        if self.marks_LNKRD is not None:
            marks = self._to_host(self.marks_LNKRD[:, at])
        return HostPages(self._to_host(self.kv_L2NKSD[:, :, at]), marks)

    def restore(self, pages: Sequence[int], saved: HostPages) -> None:
        """Copy saved pages back, to other places perhaps."""
        if not len(saved):
            return
        at = torch.tensor(pages, device=self.device)
        self.kv_L2NKSD[:, :, at] = saved.kv_L2nKSD.to(self.device)
        if self.marks_LNKRD is not None and saved.marks_LnKRD is not None:
            self.marks_LNKRD[:, at] = saved.marks_LnKRD.to(self.device)

    def _to_host(self, gathered: Tensor) -> Tensor:
        if not gathered.is_cuda:
            return gathered
        host = torch.empty(gathered.shape, dtype=gathered.dtype, pin_memory=True)
        return host.copy_(gathered)
