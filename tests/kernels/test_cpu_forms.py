"""The forms for rows that lie side by side equal the calls of the definition that they name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.page_choice import choose_evenly, choose_pages
from sparrow_kernels.paged_decode import (
    SharedRows,
    page_decode,
    paged_decode,
    row_decode,
    shared_row_decode,
)

HEAD_DIM = 6


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def bias_of(lengths: Tensor, longest: int) -> Tensor:
    """[B, 1, 1, T]: -inf beyond each length."""
    beyond = torch.arange(longest) >= lengths[:, None]
    bias = torch.zeros(beyond.shape, dtype=torch.float64).masked_fill(beyond, float("-inf"))
    return bias[:, None, None]


# ------------------------------------------------------------------ page choice
@settings(max_examples=80)
@given(
    X=st.integers(1, 4),
    C=st.integers(1, 9),
    first=st.integers(0, 3),
    last=st.integers(1, 3),
    data=st.data(),
)
def test_even_choice_is_the_choice(
    X: int, C: int, first: int, last: int, data: st.DataObject
) -> None:
    """Scores come from few values, so that ties at the edge of the budget are common."""
    best = data.draw(st.integers(0, C - 1))
    values = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    flat = data.draw(st.lists(values, min_size=X * C, max_size=X * C))
    scores_XC = torch.tensor(flat).view(X, C)
    pages = first + C + last
    padded = torch.zeros(X, 1, pages)
    padded[:, 0, first : first + C] = scores_XC
    keep = first + best + last
    told = choose_pages(padded, torch.full((X,), pages), torch.full((X,), keep), first, last, keep)
    assert choose_evenly(scores_XC, best, first, last).tolist() == told[:, 0].tolist()


# ------------------------------------------------------------------ whole rows
shapes: Any = st.tuples(
    st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 2, 5]), st.sampled_from([1, 2, 3, 8])
)


def paged(rows_BKTD: Tensor, size: int) -> Tensor:
    """Rows [B, K, P * S, D] as a pool [B * P, K, S, D], page p of sequence b at b * P + p."""
    B, K, T, D = rows_BKTD.shape
    pages = rows_BKTD.view(B, K, T // size, size, D).transpose(1, 2)
    return pages.reshape(-1, K, size, D).contiguous()


@settings(max_examples=25)
@given(shape=shapes, pages=st.integers(1, 5), even=st.booleans(), data=st.data())
def test_a_whole_row_is_every_page(
    shape: tuple[int, int, int, int], pages: int, even: bool, data: st.DataObject
) -> None:
    B, K, G, S = shape
    T = pages * S
    one = st.integers(1, T)
    lengths = data.draw(st.lists(one, min_size=B, max_size=B))
    lengths_B = torch.tensor([lengths[0]] * B if even else lengths)
    q, k, v = (normal(*s, seed=i) for i, s in enumerate([(B, K, G, 6), (B, K, T, 6), (B, K, T, 6)]))
    table = torch.arange(B * pages).view(B, pages)
    told = paged_decode(
        q, paged(k, S), paged(v, S), table, torch.arange(pages)[None, None], lengths_B, 0.4
    )
    X = B * K
    longest = int(lengths_B.max())
    bias = None if even else bias_of(lengths_B, longest)
    keys, values = (x.reshape(X, T, 6)[:, :longest] for x in (k, v))
    close(row_decode(q.reshape(X, G, 6), keys, values, 0.4, bias).view_as(told), told)


@settings(max_examples=40)
@given(
    K=st.integers(1, 3),
    G=st.sampled_from([1, 2, 5]),
    prompts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=3),
    own=st.integers(1, 6),
    data=st.data(),
)
def test_a_shared_row_and_an_own_one_are_one_sequence(
    K: int, G: int, prompts: list[tuple[int, int]], own: int, data: st.DataObject
) -> None:
    """`prompts` are (tokens, samples); prompts without samples keep their place among the rows."""
    owner = [p for p, (_, samples) in enumerate(prompts) for _ in range(samples)]
    if not owner:
        return
    order = data.draw(st.permutations(range(len(owner))))
    owner = [owner[i] for i in order]
    A, Y, L = len(owner), len(prompts) * K, max(n for n, _ in prompts)
    if L == 0:
        return
    tails = data.draw(st.lists(st.integers(1, own), min_size=A, max_size=A))
    shared_k, shared_v = normal(Y, L, HEAD_DIM, seed=1), normal(Y, L, HEAD_DIM, seed=2)
    own_k, own_v = (normal(A * K, own, HEAD_DIM, seed=i) for i in (3, 4))
    q = normal(A * K, G, HEAD_DIM, seed=5)
    most = max(owner.count(p) for p in range(len(prompts)))
    row_of_member, member_of_row = [0] * (Y * most), []
    for row, p in enumerate(owner):
        place = owner[:row].count(p)
        for head in range(K):
            member = (p * K + head) * most + place
            row_of_member[member] = row * K + head
            member_of_row.append(member)
    shared = SharedRows(
        shared_k, shared_v, torch.tensor(row_of_member), torch.tensor(member_of_row)
    )
    seen = torch.cat(
        [
            bias_of(torch.tensor([prompts[p][0] for p in owner]), L),
            bias_of(torch.tensor(tails), own),
        ],
        dim=-1,
    )
    out = shared_row_decode(q, own_k, own_v, shared, 0.4, seen)
    for row, p in enumerate(owner):
        for head in range(K):
            n, x = prompts[p][0], row * K + head
            keys = torch.cat([shared_k[p * K + head, :n], own_k[x, : tails[row]]])
            values = torch.cat([shared_v[p * K + head, :n], own_v[x, : tails[row]]])
            weights = (q[x] @ keys.T * 0.4).softmax(-1)
            close(out[x], weights @ values)


@settings(max_examples=25)
@given(shape=shapes, pages=st.integers(1, 5), data=st.data())
def test_pages_by_number_are_pages_by_table(
    shape: tuple[int, int, int, int], pages: int, data: st.DataObject
) -> None:
    """The last chosen page is the sequence's last, so unfilled slots come at the end."""
    B, K, G, S = shape
    length = data.draw(st.integers((pages - 1) * S + 1, pages * S))
    width = data.draw(st.integers(1, pages))
    chosen = [
        [
            sorted(data.draw(st.permutations(range(pages - 1)))[: width - 1]) + [pages - 1]
            for _ in range(K)
        ]
        for _ in range(B)
    ]
    pages_BKW = torch.tensor(chosen)
    q, k, v = (
        normal(*s, seed=i)
        for i, s in enumerate([(B, K, G, 6), (B, K, pages * S, 6), (B, K, pages * S, 6)])
    )
    table = torch.arange(B * pages).view(B, pages)
    lengths_B = torch.full((B,), length)
    told = paged_decode(q, paged(k, S), paged(v, S), table, pages_BKW, lengths_B, 0.4)
    pool = torch.stack([x.reshape(B * K * pages, S * 6) for x in (k, v)])
    first = torch.arange(B * K)[:, None] * pages
    tokens = width * S - (pages * S - length)
    numbers = pages_BKW.view(B * K, width) + first
    out = page_decode(q.reshape(B * K, G, 6), pool, numbers, tokens, 0.4)
    close(out.view_as(told), told)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_rows_keep_their_dtype(dtype: torch.dtype) -> None:
    q, k, v = normal(2, 3, 8), normal(2, 9, 8, seed=1), normal(2, 9, 8, seed=2)
    wide = row_decode(q, k, v, 0.3)
    out = row_decode(q.to(dtype), k.to(dtype), v.to(dtype), 0.3)
    assert out.dtype == dtype
    close_enough = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(out.double(), wide, atol=close_enough, rtol=close_enough)
