"""Page choice as two kernels: scores of all landmarks, then the best pages of each row."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from sparrow_kernels.dispatch import device_name, early_launch, settings, wide_dots
from sparrow_kernels.landmarks.triton import Work
from sparrow_kernels.page_choice.naive import Score
from sparrow_kernels.page_choice.score import score_kernel, write_and_score_kernel
from sparrow_kernels.page_choice.select import select_kernel

LOG2E = 1.4426950408889634


def launch(
    q_BKGD: Tensor,
    marks_NKRD: Tensor,
    table_BP: Tensor,
    lengths_B: Tensor,
    keep_B: Tensor,
    page_size: int,
    first: int,
    last: int,
    width: int,
    score: Score,
    tile: dict[str, Any] | None = None,
    write: Work | None = None,
) -> Tensor:
    """Run the kernels; arguments are checked by the caller.

    Args:
        tile: launch settings instead of the tuned ones.
        write: the newest token's write into these landmarks' pages, by the same launch as scores.

    Returns:
        [B, K, W] in int32.
    """
    B, K, G, D = q_BKGD.shape
    P = table_BP.shape[1]
    rows = B * K
    device = q_BKGD.device
    tile = {**settings("page_choice", device_name(device)), **(tile or {})}
    pages_BKW = torch.empty((B, K, width), dtype=torch.int32, device=device)
    # one head's softmax keeps the order of its scores
    heads = G if score == "softmax_max" else 1
    scores = torch.empty((B, K, heads, P), dtype=torch.float32, device=device)
    if not rows:
        return pages_BKW
    way = next(way for way in tile["by_marks"] if rows * P >= way["marks"])
    span = way["span"]
    spans = triton.cdiv(P, span)
    early = way["early"] and early_launch(device)
    more = {"launch_pdl": True} if early else {}
    # wide numbers take twice the room of the narrow ones that the tile was tuned for
    size = max(tile["tile"] * 2 // max(q_BKGD.element_size(), 2), 16)
    args = (
        q_BKGD, marks_NKRD, table_BP, lengths_B, keep_B, scores,
        q_BKGD.stride(0), q_BKGD.stride(1), q_BKGD.stride(2),
        marks_NKRD.stride(0), marks_NKRD.stride(1), table_BP.stride(0),
        K, P, first, last, width, spans, span, D**-0.5 * LOG2E,
    )  # fmt: skip
    constants = {
        "EARLY": early,
        "BOUNDS": marks_NKRD.shape[2] == 2,
        "WIDE": wide_dots(q_BKGD.dtype),
        "HEADS": heads,
        "G": G,
        "GP": max(triton.next_power_of_2(G), 16),
        "D": D,
        "DP": max(triton.next_power_of_2(D), 16),
        "S": page_size,
        "TILE": size,
        "num_warps": tile["warps"],
        "num_stages": tile["stages"],
        **more,
    }
    if write is None:
        score_kernel[(rows * spans,)](*args, **constants)
    else:
        keys, values, _, new_keys, new_values = write.args[:5]
        writers = write.grid[0] * write.grid[2]
        write_and_score_kernel[(writers + rows * spans,)](
            *args, keys, values, new_keys, new_values,
            *(x.stride(i) for x in (keys, values, new_keys, new_values) for i in (0, 1)),
            writers, write.grid[2], **constants,
            SLOTS=write.constants["SLOTS"], DIMS=write.constants["DIMS"],
        )  # fmt: skip
    block = triton.next_power_of_2(P)
    select_kernel[(rows,)](
        scores, lengths_B, keep_B, pages_BKW, K, P, first, last, width,
        EARLY=early, S=page_size, HEADS=heads, PAGES=block,
        WIDTH=triton.next_power_of_2(width),
        num_warps=min(max(block // tile["per_warp"], 1), 32), **more,
    )  # fmt: skip
    return pages_BKW
