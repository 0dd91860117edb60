"""How the queries of a full sequence choose their pages, and the choice itself as bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from sparrow_kernels.landmarks.naive import Landmark
from sparrow_kernels.page_choice.naive import Score

BITS = 32
"""Pages a word."""


@dataclass(frozen=True)
class PageRule:
    """The rollout's rule, for every length at once.

    Args:
        page_size: tokens a page.
        keep_N: int64 on the CPU; pages kept once so many tokens are in the cache, reserved ones
            counted: entry 0 is not used, the last one is that of the longest sequence. At least
            min(first + last, pages) everywhere.
        first, last: reserved pages at each end; last is 1 or more, since a page that is being
            filled has no landmark.
    """

    page_size: int
    keep_N: Tensor
    first: int = 1
    last: int = 2
    landmark: Landmark = "mean"
    score: Score = "group_mean"

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.first < 0 or self.last < 1:
            raise ValueError(
                "a rule needs page_size >= 1, first >= 0 and last >= 1, found "
                f"{self.page_size}, {self.first} and {self.last}"
            )
        if self.keep_N.dim() != 1 or self.keep_N.dtype != torch.int64 or self.keep_N.is_cuda:
            raise ValueError("keep_N must be int64, one axis, on the CPU")
        pages_N = -(-torch.arange(len(self.keep_N)) // self.page_size)
        short = self.keep_N[1:] < pages_N[1:].clamp(max=self.first + self.last)
        if bool(short.any()):
            length = 1 + int(short.nonzero()[0])
            raise ValueError(
                f"at length {length} the rule keeps {int(self.keep_N[length])} pages, fewer than "
                f"the {self.first + self.last} reserved ones"
            )


@dataclass(frozen=True)
class PageBits:
    """Which pages of its own sequence each token attends to.

    Attributes:
        words_KWL: int32; bit b of word w is page 32 * w + b of the sequence that the token belongs
            to. The page that holds the token is always among them, no later one is.
        page_size: tokens a page.
    """

    words_KWL: Tensor
    page_size: int

    @classmethod
    def pack(cls, chosen_KLP: Tensor, page_size: int) -> PageBits:
        """From one truth value a page."""
        K, L, P = chosen_KLP.shape
        words = -(-P // BITS)
        padded = torch.zeros((K, L, words * BITS), dtype=torch.int64, device=chosen_KLP.device)
        padded[..., :P] = chosen_KLP
        powers = torch.arange(BITS, device=chosen_KLP.device)
        packed_KLW = (padded.view(K, L, words, BITS) << powers).sum(dim=-1)
        # what does not fit a signed word is the same bits of a negative one
        packed_KLW = torch.where(packed_KLW >= 1 << 31, packed_KLW - (1 << 32), packed_KLW)
        return cls(packed_KLW.to(torch.int32).transpose(1, 2).contiguous(), page_size)

    def unpack(self) -> Tensor:
        """[K, L, P] truth values, P a multiple of 32."""
        bits = torch.arange(BITS, device=self.words_KWL.device)
        return ((self.words_KWL.transpose(1, 2)[..., None] >> bits) & 1).bool().flatten(2)


def check_sequences(tokens: int, offsets: Sequence[int]) -> None:
    """Raise ValueError unless the offsets split so many tokens into sequences of 1 or more."""
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != tokens:
        raise ValueError(f"offsets must begin with 0 and end with {tokens}, found {list(offsets)}")
    if any(b <= a for a, b in pairwise(offsets)):
        raise ValueError(f"offsets must rise, found {list(offsets)}")


def check_choice(pages: PageBits, offsets: Sequence[int]) -> None:
    """Raise ValueError unless every token attends to its own page and to none after it."""
    for start, end in pairwise(offsets):
        part = PageBits(pages.words_KWL[..., start:end], pages.page_size)
        chosen_KTP = part.unpack()
        at_T = torch.arange(end - start, device=chosen_KTP.device) // pages.page_size
        later_TP = torch.arange(chosen_KTP.shape[2], device=chosen_KTP.device) > at_T[:, None]
        own_KT1 = chosen_KTP.gather(2, at_T[None, :, None].expand(len(chosen_KTP), -1, 1))
        wrong_KT = (chosen_KTP & later_TP).any(dim=2) | ~own_KT1.squeeze(2)
        if bool(wrong_KT.any()):
            k, t = wrong_KT.nonzero()[0].tolist()
            found = chosen_KTP[k, t].nonzero().flatten().tolist()
            raise ValueError(
                f"token {start + t} is on page {int(at_T[t])} of its sequence and must attend to "
                f"it and to none after it; KV head {k} attends to pages {found}"
            )
