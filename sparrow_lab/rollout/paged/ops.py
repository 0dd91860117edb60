"""The operations of attention on pages, each once for a step's slots.

On a GPU they are the kernels, which take everything from the device and can be captured. On the CPU
they are the definitions, cut to what is in use.

Shape suffixes: B slots, K KV heads, G query heads of a KV head, N pages, S slots of a page, D head
dim, R rows of a landmark, P columns of the table, W chosen pages.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from sparrow_kernels.landmarks import Landmark, page_landmarks, write_kv
from sparrow_kernels.page_choice import page_choice, write_and_choose
from sparrow_kernels.page_choice.naive import Score
from sparrow_kernels.paged_decode import paged_decode
from sparrow_lab.sparsity.schedule import Schedule


class Choice(NamedTuple):
    """How pages are chosen, apart from how many: a captured step is tied to it."""

    page_size: int
    first: int
    last: int
    score: Score

    @classmethod
    def of(cls, schedule: Schedule) -> Choice:
        """That of a schedule."""
        return cls(schedule.page_size, *schedule.reserved_pages(), schedule.score)


def write(
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor | None,
    k_BKD: Tensor,
    v_BKD: Tensor,
    length_B: Tensor,
    table_BP: Tensor,
    landmark: Landmark,
) -> None:
    """Write each slot's newest key and value, and the landmark of a page that is full with it."""
    if keys_NKSD.is_cuda:
        new = (k_BKD, v_BKD)
        write_kv(keys_NKSD, values_NKSD, marks_NKRD, *new, None, length_B, table_BP, landmark)
        return
    S = keys_NKSD.shape[2]
    used_A = length_B.nonzero().squeeze(1)
    length_A = length_B[used_A].long()
    at_A = length_A - 1
    page_A = table_BP[used_A, at_A // S].long()
    keys_NKSD[page_A, :, at_A % S] = k_BKD[used_A]
    values_NKSD[page_A, :, at_A % S] = v_BKD[used_A]
    filled = page_A[length_A % S == 0]
    if marks_NKRD is not None and len(filled):
        marks_NKRD[filled] = page_landmarks(keys_NKSD[filled], landmark)


def write_then_choose(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor,
    k_BKD: Tensor,
    v_BKD: Tensor,
    length_B: Tensor,
    table_BP: Tensor,
    keep_B: Tensor,
    choice: Choice,
    width: int,
    landmark: Landmark,
) -> Tensor:
    """`write`, and then the pages that each KV head attends to.

    Args:
        width: W, the most pages that any sequence keeps.

    Returns:
        Logical pages, ascending [B, K, W]; P where a head keeps fewer.
    """
    size, first, last, score = choice
    if q_BKGD.is_cuda:
        written = (keys_NKSD, values_NKSD, marks_NKRD, k_BKD, v_BKD)
        places = (table_BP, length_B, keep_B)
        return write_and_choose(q_BKGD, *written, *places, first, last, width, score, landmark)
    write(keys_NKSD, values_NKSD, marks_NKRD, k_BKD, v_BKD, length_B, table_BP, landmark)
    # off the GPU the widest may be looked at without waiting
    width = min(max(int(keep_B.max()), first + last), width)
    return page_choice(
        q_BKGD, marks_NKRD, table_BP, length_B, keep_B, size, first, last, width, score
    )


def attend(
    q_BKGD: Tensor,
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    table_BP: Tensor,
    chosen: tuple[Tensor, Tensor] | None,
    length_B: Tensor,
    scale: float,
    counters_R: Tensor,
) -> Tensor:
    """[B, K, G, D]: attention to chosen pages, or to every page.

    Args:
        chosen: pages [B, K, W], and how many of them each sequence keeps [B].
        counters_R: scratch of the kernel, zeros of int32, left as zeros.
    """
    pages_BKW, keep_B1 = (None, None) if chosen is None else (chosen[0], chosen[1][:, None])
    args = (q_BKGD, keys_NKSD, values_NKSD, table_BP, pages_BKW, length_B, scale)
    return paged_decode(*args, keep_BK=keep_B1, counters_R=counters_R).out_BKGD
