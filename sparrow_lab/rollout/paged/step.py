"""One decoding step over static tensors: feed each slot its token, draw the next, in its place.

Everything that a step depends on lies in tensors whose place never changes: slots, pages, budgets,
weights. So the same code runs as it stands on the CPU, and captured in a CUDA graph on a GPU.

Shape suffixes: B slots, K KV heads, G query heads of a KV head, D head dim, M model width.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged import ops
from sparrow_lab.rollout.paged.budgets import Budgets
from sparrow_lab.rollout.paged.ops import Choice
from sparrow_lab.rollout.paged.sampling import draw
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.store import PageStore


class StepShape(NamedTuple):
    """All that a captured step is tied to, beside the tensors."""

    slots: int
    """How many are fed; those of length 0 are empty."""
    columns: int
    """Pages that the longest sequence may have."""
    choice: Choice | None
    """How pages are chosen; None attends to all."""
    width: int
    """Pages that a choice has room for: no sequence keeps more."""
    truncates: bool
    """Whether any slot samples with top-k, top-p or min-p."""


def decode_step(
    decoder: Decoder,
    store: PageStore,
    slots: Slots,
    budgets: Budgets,
    shape: StepShape,
) -> None:
    """Write the next token, its log-probabilities and its hidden state into the slots."""
    B, P = shape.slots, shape.columns
    K, G, D = decoder.kv_heads, decoder.group, decoder.head_dim
    length_B, table_BP = slots["length"][:B], slots["table"][:B, :P]
    landmark = store.layout.landmark or "mean"
    choice, keep_B = shape.choice, None
    if choice is not None:
        keep_B = budgets.keep(length_B, choice.page_size, choice.first + choice.last)
    turns = decoder.turns_at((length_B - 1).clamp(min=0))
    x = decoder.embed(slots["token"][:B])
    on_B1 = slots["adapted"][:B, None].to(x.dtype) if decoder.adapted else None
    for i in range(decoder.layers):
        y_BKHD = decoder.project(i, x, turns, on_B1).view(B, K, G + 2, D)
        q_BKGD, k, v = y_BKHD.split((G, 1, 1), dim=2)
        keys, values = store.keys[i], store.values[i]
        marks = store.marks(i) if choice is not None else None
        new = (k[:, :, 0], v[:, :, 0], length_B, table_BP)
        chosen = None
        if choice is None or keep_B is None or marks is None:
            ops.write(keys, values, marks, *new, landmark)
        else:
            pools = (keys, values, marks)
            pages = ops.write_then_choose(
                q_BKGD, *pools, *new, keep_B, choice, shape.width, landmark
            )
            chosen = pages, keep_B
        args = (q_BKGD, keys, values, table_BP, chosen, length_B, decoder.scale, slots.counters)
        x = decoder.finish(i, x, ops.attend(*args).reshape(B, -1), on_B1)
    hidden_BM = decoder.final(x)
    drawn = draw(decoder.scores(hidden_BM), slots, slice(0, B), shape.truncates)
    slots["token"][:B] = drawn.tokens
    slots.logp[:B] = drawn.logp
    slots.raw_logp[:B] = drawn.raw_logp
    slots.hidden[:B] = hidden_BM
