"""One decoding step: feed every row its newest token and get the next hidden states.

Dense layers, a dense schedule and a step at which every sequence is within its budget take one
path: whole rows, no choice. Otherwise every sequence chooses; one within its budget is given all
its pages in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparrow_lab.rollout.attention import ChosenPages, WholeRows
from sparrow_lab.rollout.cache import RowCache
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.rows import Layout, Rows
from sparrow_lab.sparsity.schedule import Schedule

Ints = npt.NDArray[np.int64]


def decode_step(
    decoder: Decoder,
    cache: RowCache,
    rows: Rows,
    layout: Layout,
    schedule: Schedule,
    kept_pages: Ints,
) -> Tensor:
    """Feed `rows.token`; the rows' lengths grow by 1.

    Args:
        kept_pages: pages that the schedule keeps at each length, from 0 to the longest.

    Returns:
        Final hidden states [A, M].
    """
    size = cache.page_size
    if layout.even:
        position = layout.even[0] + rows.steps
        turns = decoder.turn(position)
        length = np.array([position + 1])
    else:
        turns = decoder.turns(rows.length)
        length = rows.length + 1
    whole = WholeRows(cache, rows, layout, decoder.scale)
    chosen = None
    if cache.marks_LXPED is not None:
        pages, keep = -(-length // size), kept_pages[length]
        if (keep < pages).any():
            chosen = ChosenPages(cache, rows, layout, schedule, decoder.scale, length, pages, keep)
    x = decoder.embed(rows.token)
    for i in range(decoder.layers):
        q_XGD, kv_X2D = decoder.project(i, x, turns).split((decoder.group, 2), dim=1)
        whole.write(i, kv_X2D)
        attend = whole.attend if chosen is None or i < cache.sparse_from else chosen.attend
        x = decoder.finish(i, x, attend(i, q_XGD).view(len(rows), -1))
    rows.steps += 1
    if cache.marks_LXPED is not None and not (length % size).all():
        full = np.flatnonzero(rows.length % size == 0)
        columns = rows.length[full] // size - 1
        cache.fill(full, columns - rows.shared[full] // size, columns)
    return decoder.final(x)
