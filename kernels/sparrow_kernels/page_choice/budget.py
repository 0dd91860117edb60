"""How many pages each sequence keeps: a schedule's steps, looked up on the device."""

from __future__ import annotations

import torch
from torch import Tensor


def kept_pages(
    lengths_B: Tensor, edges_E: Tensor, budgets_E: Tensor, page_size: int, reserved: int
) -> Tensor:
    """Pages that the budget at each length holds: reserved ones counted, at most those in use.

    Once a step, for all layers, without waiting for the device: it can be captured in a CUDA graph.

    Args:
        lengths_B: tokens in the cache, the current one included; 0 for an empty slot.
        edges_E: first length of each step, rising from 0.
        budgets_E: tokens attended to in each step; more than any cache holds means all.
        reserved: pages that are always kept.

    Returns:
        [B] in int32; 0 for an empty slot.
    """
    step_B = torch.searchsorted(edges_E, lengths_B, right=True) - 1
    pages_B = budgets_E[step_B].div(page_size, rounding_mode="floor").clamp(min=reserved)
    return pages_B.minimum((lengths_B + page_size - 1) // page_size).to(torch.int32)
