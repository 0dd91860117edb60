"""Page choice for sequences that all have the same pages and keep equally many.

Only the pages between the reserved ones are scored and ranked. Shape suffixes: X (sequence, KV
head) pairs, C candidate pages, W chosen pages.
"""

from __future__ import annotations

import torch
from torch import Tensor


def choose_evenly(scores_XC: Tensor, best: int, first: int, last: int) -> Tensor:
    """Keep the reserved pages and the `best` candidates: `naive.choose_pages` without padding.

    Args:
        scores_XC: scores of the pages first .. first + C - 1.
        best: candidates to keep, fewer than C.
        first, last: reserved pages at each end.

    Returns:
        [X, first + best + last] page indices in ascending order. Ties go to the lower page index.
    """
    X, C = scores_XC.shape
    device = scores_XC.device
    parts = []
    if first:
        parts.append(torch.arange(first, device=device).expand(X, -1))
    if best:
        values, chosen = scores_XC.topk(best + 1, dim=-1)
        if bool((values[:, -2] == values[:, -1]).any()):  # topk takes any of equal pages
            chosen = scores_XC.sort(dim=-1, descending=True, stable=True).indices
        parts.append(chosen[:, :best].sort(dim=-1).values.add_(first))
    parts.append(torch.arange(first + C, first + C + last, device=device).expand(X, -1))
    return torch.cat(parts, dim=-1)
