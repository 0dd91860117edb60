"""The CPU forms of the ops against their naive definitions, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.page_choice import best_evenly, choose_pages, page_scores, score_evenly
from sparrow_kernels.paged_decode import (
    SharedRows,
    page_decode,
    paged_decode,
    row_decode,
    shared_row_decode,
)


def assert_equal(ours: Tensor, told: Tensor) -> None:
    torch.testing.assert_close(ours, told, atol=1e-12, rtol=1e-12)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


shapes = st.fixed_dictionaries(
    {
        "A": st.integers(1, 4),
        "K": st.integers(1, 3),
        "G": st.sampled_from([1, 2, 5]),
        "D": st.sampled_from([1, 2, 8]),
        "S": st.sampled_from([1, 3, 4]),
        "P": st.integers(1, 5),
        "seed": st.integers(0, 99),
    }
)


def take(shape: dict[str, int], names: str) -> list[int]:
    """Sizes by name, the names parted by spaces."""
    return [shape[name] for name in names.split()]


def rows_of(A: int, K: int, P: int, S: int, D: int, seed: int) -> tuple[Tensor, Tensor]:
    """Keys and values of A * K rows of P pages, as rows [X, T, D] each."""
    return normal(A * K, P * S, D, seed=seed), normal(A * K, P * S, D, seed=seed + 1)


def as_pool(rows_XTD: Tensor, K: int, S: int) -> Tensor:
    """The same as a pool [A * P, K, S, D] of the definition."""
    paged = rows_XTD.unflatten(1, (-1, S)).unflatten(0, (-1, K))
    pool: Tensor = paged.transpose(1, 2).flatten(0, 1).contiguous()
    return pool


def bias_of(lengths: list[int], tokens: int) -> Tensor:
    beyond = torch.arange(tokens) >= torch.tensor(lengths)[:, None]
    bias = torch.zeros(beyond.shape, dtype=torch.float64).masked_fill(beyond, float("-inf"))
    return bias[:, None, None]


# ------------------------------------------------------------------ attention
@settings(max_examples=60)
@given(shape=shapes, data=st.data())
def test_rows_equal_paged_decode_of_every_page(shape: dict[str, int], data: st.DataObject) -> None:
    A, K, G, D, S, P, seed = take(shape, "A K G D S P seed")
    lengths = data.draw(st.lists(st.integers(1, P * S), min_size=A, max_size=A))
    keys, values = rows_of(A, K, P, S, D, seed)
    q = normal(A, K, G, D, seed=seed + 2)
    told = paged_decode(
        q,
        as_pool(keys, K, S),
        as_pool(values, K, S),
        torch.arange(A * P).view(A, P),
        torch.arange(P)[None, None],
        torch.tensor(lengths),
        0.3,
    ).out_BKGD.flatten(0, 1)
    ours = row_decode(q.flatten(0, 1), keys, values, 0.3, bias_of(lengths, P * S))
    assert_equal(ours, told)
    even = max(lengths)
    if set(lengths) == {even}:
        cut = row_decode(q.flatten(0, 1), keys[:, :even], values[:, :even], 0.3)
        assert_equal(cut, told)


@settings(max_examples=60)
@given(shape=shapes, owner=st.lists(st.integers(0, 2), min_size=1, max_size=6), data=st.data())
def test_shared_rows_equal_paged_decode_of_a_table_that_shares(
    shape: dict[str, int], owner: list[int], data: st.DataObject
) -> None:
    """Groups of any sizes, also empty ones; sequences share a part of their group's row."""
    K, G, D, S, P, seed = take(shape, "K G D S P seed")
    A, groups, L = len(owner), 3, 2
    shared_pages = data.draw(st.lists(st.integers(0, L), min_size=groups, max_size=groups))
    own = data.draw(st.lists(st.integers(1, P * S), min_size=A, max_size=A))
    first_k, first_v = rows_of(groups, K, L, S, D, seed)
    keys, values = rows_of(A, K, P, S, D, seed + 2)
    q = normal(A, K, G, D, seed=seed + 4)
    # the definition: one pool holds the shared pages and then each sequence's own
    table = torch.zeros((A, L + P), dtype=torch.long)
    for a, g in enumerate(owner):
        n = shared_pages[g]
        numbers = [g * L + p for p in range(n)] + [groups * L + a * P + p for p in range(P)]
        table[a, : n + P] = torch.tensor(numbers)
    told = paged_decode(
        q,
        torch.cat([as_pool(first_k, K, S), as_pool(keys, K, S)]),
        torch.cat([as_pool(first_v, K, S), as_pool(values, K, S)]),
        table,
        torch.arange(L + P)[None, None],
        torch.tensor([shared_pages[g] * S + n for g, n in zip(owner, own, strict=True)]),
        0.7,
    ).out_BKGD.flatten(0, 1)
    most = max(owner.count(g) for g in range(groups))
    row_of_member = torch.zeros(groups * K * most, dtype=torch.long)
    member_of_row = torch.zeros(A * K, dtype=torch.long)
    for a, g in enumerate(owner):
        for k in range(K):
            place = (g * K + k) * most + owner[:a].count(g)
            row_of_member[place], member_of_row[a * K + k] = a * K + k, place
    ahead = bias_of([shared_pages[g] * S for g in owner], L * S)
    bias = torch.cat([ahead, bias_of(own, P * S)], dim=-1)
    shared = SharedRows(first_k, first_v, row_of_member, member_of_row)
    ours = shared_row_decode(q.flatten(0, 1), keys, values, shared, 0.7, bias)
    assert_equal(ours, told)


@settings(max_examples=60)
@given(shape=shapes, data=st.data())
def test_pages_equal_paged_decode_of_chosen_pages(
    shape: dict[str, int], data: st.DataObject
) -> None:
    """Every head's own pages, the sequence's last one at the end, partly filled."""
    A, K, G, D, S, P, seed = take(shape, "A K G D S P seed")
    width = data.draw(st.integers(1, P))
    fill = data.draw(st.integers(1, S))
    orders = [data.draw(st.permutations(range(P - 1))) for _ in range(A * K)]
    chosen = torch.tensor([[*sorted(order[: width - 1]), P - 1] for order in orders])
    keys, values = rows_of(A, K, P, S, D, seed)
    q = normal(A, K, G, D, seed=seed + 2)
    told = paged_decode(
        q,
        as_pool(keys, K, S),
        as_pool(values, K, S),
        torch.arange(A * P).view(A, P),
        chosen.view(A, K, width),
        torch.full((A,), (P - 1) * S + fill),
        0.5,
    ).out_BKGD.flatten(0, 1)
    pool = torch.stack([keys, values]).view(2, A * K * P, S * D)
    numbers = chosen + torch.arange(A * K)[:, None] * P
    tokens = (width - 1) * S + fill
    ours = page_decode(q.flatten(0, 1), pool, numbers, tokens, 0.5)
    assert_equal(ours, told)
    bias = bias_of([tokens] * A, width * S)
    masked = page_decode(q.flatten(0, 1), pool, numbers, width * S, 0.5, bias)
    assert_equal(masked, told)


def test_bfloat16_keeps_its_dtype() -> None:
    keys, values = (x.bfloat16() for x in rows_of(1, 1, 3, 4, 16, 0))
    q = normal(1, 2, 16, seed=2).bfloat16()
    out = row_decode(q, keys, values, 0.25)
    assert out.dtype == torch.bfloat16
    wide = row_decode(q.double(), keys.double(), values.double(), 0.25)
    torch.testing.assert_close(out.double(), wide, atol=0.05, rtol=0.05)


# ------------------------------------------------------------------ choice
@settings(max_examples=40)
@given(shape=shapes, kind=st.integers(1, 2), score=st.sampled_from(["group_mean", "softmax_max"]))
def test_scores_of_candidates_equal_page_scores(
    shape: dict[str, int], kind: int, score: Any
) -> None:
    A, K, G, D, P, seed = take(shape, "A K G D P seed")
    marks = normal(A, P, K, kind, D, seed=seed).sort(dim=3).values
    q = normal(A, K, G, D, seed=seed + 1)
    everything = torch.ones((A, P), dtype=torch.bool)
    told = page_scores(q, marks, everything, score).flatten(0, 1)
    ours = score_evenly(q.flatten(0, 1), marks.transpose(1, 2).flatten(0, 1), score)
    assert_equal(ours, told)


@pytest.mark.parametrize("candidates", [2, 5, 64, 65, 200])
@pytest.mark.parametrize("values", [2, 10, 10_000])
def test_the_best_are_those_of_choose_pages(candidates: int, values: int) -> None:
    """Few distinct values, so that ties are common, on both sides of the switch to top-k."""
    noise = torch.Generator().manual_seed(candidates)
    scores = torch.randint(values, (7, candidates), generator=noise).double()
    first, last = 2, 1
    pages = first + candidates + last
    padded = torch.nn.functional.pad(scores, (first, last))
    for best in {1, candidates // 2, candidates - 1}:
        keep = first + best + last
        args = (torch.full((7,), pages), torch.full((7,), keep), first, last, keep)
        told = choose_pages(padded[:, None], *args)[:, 0, first : first + best] - first
        ours = best_evenly(scores, best)
        assert ours.shape == (7, best)
        assert ours.sort(dim=-1).values.tolist() == told.tolist()
        ranked = scores.gather(1, ours)
        assert (ranked[:, 1:] <= ranked[:, :-1]).all()
