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
