"""Landmarks, scores and the choice of pages, against loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.landmarks import landmark_rows, page_landmarks
from sparrow_kernels.page_choice import choose_pages, page_scores


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------ landmarks
@settings(max_examples=30)
@given(
    pages=st.integers(0, 4),
    heads=st.integers(1, 3),
    size=st.sampled_from([1, 2, 3, 8]),
    dim=st.integers(1, 9),
)
def test_landmarks_are_the_mean_and_the_bounds_of_a_pages_keys(
    pages: int, heads: int, size: int, dim: int
) -> None:
    keys = normal(pages, heads, size, dim)
    mean, bounds = page_landmarks(keys, "mean"), page_landmarks(keys, "minmax")
    assert mean.shape == (pages, heads, landmark_rows("mean"), dim) and landmark_rows("mean") == 1
    assert bounds.shape == (pages, heads, 2, dim) and landmark_rows("minmax") == 2
    for p in range(pages):
        for h in range(heads):
            block = keys[p, h].numpy()
            np.testing.assert_allclose(mean[p, h, 0].numpy(), block.sum(axis=0) / size, atol=1e-14)
            assert bounds[p, h, 0].tolist() == block.min(axis=0).tolist()
            assert bounds[p, h, 1].tolist() == block.max(axis=0).tolist()


def test_the_mean_of_narrow_keys_is_taken_in_float32() -> None:
    """One key of 256 beside 511 of 1: a running sum in bfloat16 would lose the small ones."""
    keys = torch.ones(1, 1, 512, 1, dtype=torch.bfloat16)
    keys[..., 0, :] = 256.0
    mark = page_landmarks(keys, "mean")
    assert mark.dtype == torch.bfloat16
    assert float(mark) == float(torch.tensor((256 + 511) / 512, dtype=torch.bfloat16))


# ------------------------------------------------------------------ scores
@settings(max_examples=40)
@given(
    kind=st.sampled_from(["mean", "minmax"]),
    score=st.sampled_from(["group_mean", "softmax_max"]),
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 2), st.sampled_from([1, 2, 5]), st.integers(1, 6)
    ),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_scores_equal_loops(
    kind: Any, score: Any, shape: tuple[int, int, int, int], seed: int, data: st.DataObject
) -> None:
    B, K, G, P = shape
    D = 4
    q_BKGD = normal(B, K, G, D, seed=seed)
    keys = normal(B, P, K, 3, D, seed=seed + 1)
    marks_BPKRD = page_landmarks(keys.flatten(0, 1), kind).unflatten(0, (B, P))
    flags = data.draw(st.lists(st.booleans(), min_size=B * P, max_size=B * P))
    candidate_BP = torch.tensor(flags).view(B, P)
    scores = page_scores(q_BKGD, marks_BPKRD, candidate_BP, score)
    assert scores.shape == (B, K, P)
    assert torch.isfinite(scores).all()

    def bound(q_D: Tensor, b: int, p: int, k: int) -> float:
        block = keys[b, p, k]
        if kind == "mean":
            return float(q_D @ (block.sum(dim=0) / 3))
        sides = zip(q_D.tolist(), block.amin(0).tolist(), block.amax(0).tolist(), strict=True)
        return float(sum(max(x * low, x * high) for x, low, high in sides))

    for b in range(B):
        pages = [p for p in range(P) if candidate_BP[b, p]]
        for k in range(K):
            if score == "group_mean":
                mean_D = q_BKGD[b, k].sum(dim=0) / G
                told = {p: bound(mean_D, b, p, k) for p in pages}
            else:
                told = dict.fromkeys(pages, 0.0)
                for g in range(G):
                    raw = {p: math.exp(bound(q_BKGD[b, k, g], b, p, k) / 2) for p in pages}
                    for p in pages:
                        told[p] = max(told[p], raw[p] / sum(raw.values()))
            for p in pages:
                assert float(scores[b, k, p]) == pytest.approx(told[p], abs=1e-12)


def test_bounds_are_an_upper_bound_on_every_key() -> None:
    """Quest's promise: no key of a page scores above its landmark."""
    q, keys = normal(1, 1, 1, 6), normal(20, 1, 5, 6, seed=1)
    marks = page_landmarks(keys, "minmax")[None]
    scores = page_scores(q, marks, torch.ones(1, 20, dtype=torch.bool), "group_mean")[0, 0]
    assert (scores >= (keys[:, 0] @ q[0, 0, 0]).amax(dim=1) - 1e-12).all()


# ------------------------------------------------------------------ choice
@st.composite
def choices(draw: st.DrawFn) -> dict[str, Any]:
    """Ragged sequences with scores drawn from few values, so that ties are common."""
    B, K = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    P = draw(st.integers(1, 12))
    first, last = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    pages = draw(st.lists(st.integers(1, P), min_size=B, max_size=B))
    keep = [draw(st.integers(min(first + last, n), n)) for n in pages]
    values = st.sampled_from([-1e30, -1.0, 0.0, 0.5, 2.0, 1e30])
    scores = draw(st.lists(values, min_size=B * K * P, max_size=B * K * P))
    return {
        "scores_BKP": torch.tensor(scores).view(B, K, P),
        "pages_B": torch.tensor(pages),
        "keep_B": torch.tensor(keep),
        "first": first,
        "last": last,
        "width": max(keep),
    }


@settings(max_examples=150)
@given(call=choices())
def test_choice_keeps_reserved_pages_and_the_best_others(call: dict[str, Any]) -> None:
    chosen = choose_pages(**call)
    B, K, P = call["scores_BKP"].shape
    assert chosen.shape == (B, K, call["width"])
    for b in range(B):
        pages, keep = int(call["pages_B"][b]), int(call["keep_B"][b])
        reserved = {p for p in range(pages) if p < call["first"] or p >= pages - call["last"]}
        for k in range(K):
            row = chosen[b, k].tolist()
            kept = [p for p in row if p < P]
            assert row == sorted(row) and kept == sorted(set(kept))
            assert len(kept) == keep and row[keep:] == [P] * (len(row) - keep)
            assert all(p < pages for p in kept)
            assert reserved <= set(kept)
            scores = call["scores_BKP"][b, k].tolist()
            others = [p for p in range(pages) if p not in reserved]
            ranked = sorted(others, key=lambda p: (-scores[p], p))
            assert set(kept) - reserved == set(ranked[: keep - len(reserved)])


def test_choice_is_the_same_alone_and_beside_longer_sequences() -> None:
    scores = normal(2, 1, 9)
    both = choose_pages(scores, torch.tensor([4, 9]), torch.tensor([3, 5]), 1, 1, 5)
    alone = choose_pages(scores[:1, :, :4], torch.tensor([4]), torch.tensor([3]), 1, 1, 3)
    assert both[0, 0, :3].tolist() == alone[0, 0].tolist()


def test_everything_kept_is_everything_in_order() -> None:
    scores = normal(1, 2, 7)
    chosen = choose_pages(scores, torch.tensor([7]), torch.tensor([7]), 1, 2, 7)
    assert chosen.tolist() == [[list(range(7))] * 2]
