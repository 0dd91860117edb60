"""The second kernel of page choice: the best pages of each row, by their scores.

It finds the score of the last page to keep by narrowing the range of floats, counting; pages above
it are kept, and of those equal to it the first ones. No sort, no atomics: equal inputs give equal
pages.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparrow_kernels.page_choice.score import kept_of


@triton.jit
def _key_of(x):
    """Whole numbers in the order of the floats."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF) ^ -2147483648).to(tl.uint32, bitcast=True)


@triton.jit
def _narrow(key, state, low, high, need):
    """Count the keys at or above two marks in the range, and keep the part that ends the choice."""
    both = (key >= low).to(tl.int32) + ((key >= high).to(tl.int32) << 16)
    # one sum for both: there are at most 2 ** 15 keys
    both = tl.sum(both, 0).to(tl.uint32, bitcast=True)
    state = _one_mark(state, low, (both & 0xFFFF).to(tl.int32), need)
    return _one_mark(state, high, (both >> 16).to(tl.int32), need)


@triton.jit
def _one_mark(state, mark, count, need):
    least, most, reach, above = state
    enough = (count >= need) & (mark > least)
    fewer = (count < need) & (mark < most)
    least = tl.where(enough, mark, least)
    reach = tl.where(enough, count, reach)
    return least, tl.where(fewer, mark, most), reach, tl.where(fewer, count, above)


@triton.jit(do_not_specialize=["P", "width"])
def select_kernel(
    scores, lengths, keep, pages, K, P, first, last, width,
    EARLY: tl.constexpr, S: tl.constexpr, HEADS: tl.constexpr,
    PAGES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The pages that one row keeps. HEADS > 1: scores are logits of so many query heads."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    count, kept = kept_of(lengths, keep, row // K, S, first, last, width)
    p = tl.arange(0, PAGES)
    # who keeps all pages has none to choose among
    end = tl.where(kept < count, count - last, 0)
    free = (p >= first) & (p < end)
    s_P = tl.full([PAGES], -float("inf"), tl.float32)
    for g in tl.static_range(HEADS):
        z_P = tl.load(scores + (row * HEADS + g) * P + p, mask=free, other=-float("inf"))
        if HEADS > 1:
            top = tl.max(z_P, 0)
            top = tl.where(top == -float("inf"), 0.0, top)
            z_P -= top + tl.log2(tl.maximum(tl.sum(tl.exp2(z_P - top), 0), 1e-30))
        s_P = tl.maximum(s_P, z_P, propagate_nan=tl.PropagateNan.ALL)
    # 0 is the key of what cannot be chosen; -0 counts as 0
    key = tl.where(free, _key_of(tl.where(s_P == 0, 0.0, s_P)), 0)
    need = kept - first - last
    # `reach` keys are at least `least`, as many as needed or more; `above` are `most` or more
    state = (
        tl.zeros([], tl.uint32),
        tl.full([], 0xFFFFFFFF, tl.uint32),
        tl.full([], PAGES, tl.int32),
        tl.zeros([], tl.int32),
    )
    # the last page to keep mostly scores between an eighth and a half of the first
    best = tl.maximum(tl.max(key, 0), 4 << 23)
    state = _narrow(key, state, best - (3 << 23), best - (1 << 23), need)
    least, most, reach, above = state
    while (reach != need) & (most - least > 1):
        step = tl.maximum((most - least) // 3, 1).to(tl.uint32)
        state = _narrow(key, (least, most, reach, above), least + step, least + 2 * step, need)
        least, most, reach, above = state
    chosen = (key >= least) & free
    if reach > need:
        # all that are left are equal: the first ones
        even = (key == least) & free
        chosen &= (key > least) | (tl.cumsum(even.to(tl.int32), 0) <= need - above)
    chosen = (chosen | (p < first) | (p >= end)) & (p < count)
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    pages += row * width
    tl.store(pages + place, p, mask=chosen & (place < width))
    w = tl.arange(0, WIDTH)
    tl.store(pages + w, tl.zeros([WIDTH], tl.int32) + P, mask=(w >= kept) & (w < width))
