"""Which pages are free, and how many users each of the others has. No tensor is touched here."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sparrow_lab.errors import UserError


class PagePool:
    """Page numbers 0 .. pages - 1, each free or held by one or more users.

    A page of a prompt is held by each of its samples; it is free again when the last one lets go.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._users = np.zeros(pages, np.int64)
        # the lowest numbers are given out first: what a short run writes stays together
        self._free = list(range(pages))[::-1]

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Pages that somebody holds; 0 when everything has been given back."""
        return self.pages - len(self._free)

    def take(self, count: int) -> list[int]:
        """Hold so many free pages, each once.

        Raises:
            RuntimeError: fewer are free. Nothing is taken then; the scheduler should have known.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} pages wanted, {len(self._free)} of {self.pages} are free")
        if count <= 0:
            return []
        taken = self._free[-count:][::-1]
        del self._free[-count:]
        self._users[taken] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that somebody holds already once more."""
        for page in pages:
            if not self._users[page]:
                raise RuntimeError(f"page {page} is free and cannot be shared")
            self._users[page] += 1

    def release(self, pages: Iterable[int]) -> list[int]:
        """Let go of pages; returns those that are free now.

        Raises:
            RuntimeError: a page is free already: somebody gave it back twice.
        """
        freed = []
        for page in pages:
            if not self._users[page]:
                raise RuntimeError(f"page {page} is free and cannot be given back")
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
                freed.append(page)
        return freed


def pages_of(tokens: int, page_size: int) -> int:
    """Pages that hold so many tokens, the last one perhaps in part."""
    return -(-tokens // page_size)


def check_fits(
    prompt: int, new_tokens: int, shared: bool, page_size: int, pages: int, page_bytes: int
) -> None:
    """Refuse a request that would not fit the pool even if it were alone in it.

    Args:
        prompt, new_tokens: tokens of the prompt, and the most that may be generated.
        shared: other samples of the prompt may wait while this one runs, so that a prompt's last
            page, if partly filled, is there twice.
        page_bytes: size of a page in all layers, for the message.

    Raises:
        UserError: with the numbers.
    """
    # the last token is drawn and never fed, so it needs no place; a start asks for one in any case
    need = pages_of(prompt + max(new_tokens - 1, 1), page_size)
    need += bool(shared and prompt % page_size)
    if need > pages:
        gb = page_bytes / 2**30
        raise UserError(
            f"a prompt of {prompt} tokens and {new_tokens} new ones need {need} pages of "
            f"{page_size} tokens ({need * gb:.2f} GiB), but the KV cache holds {pages} "
            f"({pages * gb:.2f} GiB); give it more memory or lower the cap on new tokens",
            "memory",
        )
