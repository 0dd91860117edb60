"""The definition of a landmark, in plain torch.

Shape suffixes: P pages, K KV heads, S slots of a page, R rows of a landmark, D head dim.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Landmark = Literal["mean", "minmax"]


def landmark_rows(kind: Landmark) -> int:
    """Vectors that one landmark holds: 1 for the mean, 2 for the bounds (min, then max)."""
    return {"mean": 1, "minmax": 2}[kind]


def page_landmarks(keys_PKSD: Tensor, kind: Landmark) -> Tensor:
    """Summarise full pages.

    Args:
        keys_PKSD: keys after norm and rotation, every slot filled.
        kind: `mean` (paper section 2) or `minmax` (Quest's bounds).

    Returns:
        [P, K, R, D] in the dtype of the keys; the mean is accumulated in float32 or better.
    """
    if kind == "mean":
        wide = keys_PKSD if keys_PKSD.dtype == torch.float64 else keys_PKSD.float()
        return wide.mean(dim=2, keepdim=True).to(keys_PKSD.dtype)
    return torch.stack([keys_PKSD.amin(dim=2), keys_PKSD.amax(dim=2)], dim=2)


def write_kv(
    keys_NKSD: Tensor,
    values_NKSD: Tensor,
    marks_NKRD: Tensor | None,
    new_keys_TKD: Tensor,
    new_values_TKD: Tensor,
    starts_B1: Tensor | None,
    lengths_B: Tensor,
    table_BP: Tensor,
    kind: Landmark,
) -> None:
    """Write new tokens into the pool, and the landmark of every page that they fill.

    Args:
        keys_NKSD, values_NKSD: the pool; its rows are physical pages.
        marks_NKRD: a landmark for each physical page and KV head; None keeps none.
        new_keys_TKD, new_values_TKD: tokens of all sequences, one sequence after the other.
        starts_B1: where each sequence's new tokens begin, and their number at the end (B + 1
            numbers). None: one token each (decoding).
        lengths_B: tokens in the cache once the new ones are written; 0 for an empty slot, whose
            new tokens are dropped.
        table_BP: physical page of each logical page.
    """
    S = keys_NKSD.shape[2]
    bounds = list(range(len(lengths_B) + 1)) if starts_B1 is None else starts_B1.tolist()
    for b, length in enumerate(lengths_B.tolist()):
        begin, end = bounds[b], bounds[b + 1]
        if not length or begin == end:
            continue
        past = length - (end - begin)
        at = torch.arange(past, length, device=keys_NKSD.device)
        page_T, slot_T = table_BP[b, at // S].long(), at % S
        keys_NKSD[page_T, :, slot_T] = new_keys_TKD[begin:end]
        values_NKSD[page_T, :, slot_T] = new_values_TKD[begin:end]
        filled = table_BP[b, past // S : length // S].long()
        if marks_NKRD is not None and len(filled):
            marks_NKRD[filled] = page_landmarks(keys_NKSD[filled], kind)
