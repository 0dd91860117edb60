"""The paged KV cache: a pool of pages, a free list, and landmarks of full pages.

Shape suffixes: N pages of the pool, K KV heads, S slots of a page, R rows of a landmark, D head
dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sparrow_kernels.landmarks import landmark_rows, page_landmarks
from sparrow_kernels.landmarks.naive import Landmark


class PoolExhausted(RuntimeError):
    """No free page is left; the scheduler must not let it come to this."""


class PagedCache:
    """Keys, values and landmarks of all layers, one row a physical page.

    Pages are counted: the pages of a prompt are shared by its samples and go back to the free list
    when the last of them lets go.
    """

    def __init__(
        self,
        layers: int,
        pages: int,
        kv_heads: int,
        page_size: int,
        head_dim: int,
        landmark: Landmark,
        sparse_from: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (pages, kv_heads, page_size, head_dim)
        rows = landmark_rows(landmark)
        self.page_size = page_size
        self.landmark = landmark
        self.sparse_from = sparse_from
        """First layer that chooses pages; layers before it keep no landmarks."""
        # zeros, not empty: a masked slot still enters a product with weight 0, and 0 * NaN is NaN
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.landmarks = [
            torch.zeros((pages, kv_heads, rows, head_dim), dtype=dtype, device=device)
            if i >= sparse_from
            else None
            for i in range(layers)
        ]
        self._free = list(range(pages - 1, -1, -1))
        self._users = [0] * pages

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def used_pages(self) -> int:
        return len(self._users) - len(self._free)

    def take(self, count: int) -> list[int]:
        """Take pages from the free list, each with one user."""
        if count > len(self._free):
            raise PoolExhausted(f"{count} pages wanted, {len(self._free)} free")
        if not count:
            return []
        pages = self._free[-count:][::-1]
        del self._free[-count:]
        for page in pages:
            self._users[page] = 1
        return pages

    def share(self, pages: list[int]) -> None:
        """Add a user to each page."""
        for page in pages:
            self._users[page] += 1

    def release(self, pages: list[int]) -> None:
        """Take a user from each page; pages without users are free again."""
        for page in pages:
            self._users[page] -= 1
            if self._users[page] == 0:
                self._free.append(page)

    def write_prompt(self, layer: int, pages: list[int], k_TKD: Tensor, v_TKD: Tensor) -> None:
        """Write a prompt's keys and values from slot 0 of its first page, with landmarks."""
        size = self.page_size
        length = len(k_TKD)
        at = torch.tensor(pages, device=k_TKD.device)
        full = length // size
        for pool, new in ((self.keys[layer], k_TKD), (self.values[layer], v_TKD)):
            blocks = new[: full * size].unflatten(0, (full, size)).transpose(1, 2)
            pool[at[:full]] = blocks
            if full < len(pages):
                pool[pages[-1], :, : length - full * size] = new[full * size :].transpose(0, 1)
        self.update_landmarks(layer, at[:full])

    def append(
        self, layer: int, pages_B: Tensor, slots_B: Tensor, k_BKD: Tensor, v_BKD: Tensor
    ) -> None:
        """Write one token a sequence."""
        self.keys[layer][pages_B, :, slots_B] = k_BKD
        self.values[layer][pages_B, :, slots_B] = v_BKD

    def update_landmarks(self, layer: int, pages: Tensor) -> None:
        """Recompute the landmarks of pages whose last slot has been filled."""
        marks = self.landmarks[layer]
        if marks is not None and len(pages):
            marks[pages] = page_landmarks(self.keys[layer][pages], self.landmark)

    def copy_page(self, source: int, target: int) -> None:
        """Copy a partly filled page, so that a sample can go on writing in its own."""
        for pool in (*self.keys, *self.values):
            pool[target] = pool[source]
