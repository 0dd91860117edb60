"""The kernels of page choice against the definition: exact where scores are, else by the scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.dispatch import Backend
from sparrow_kernels.page_choice import kept_pages, naive, page_choice
from tests.kernels.devices import DEVICES, poisoned

DTYPES = [torch.float32, torch.bfloat16]


@dataclass
class Case:
    """Arguments of one call."""

    q_BKGD: Tensor
    marks_NKRD: Tensor
    table_BP: Tensor
    lengths_B: Tensor
    keep_B: Tensor
    page_size: int
    first: int
    last: int
    width: int
    score: Any

    def run(self, backend: Backend | None) -> Tensor:
        return page_choice(**vars(self), backend=backend)

    def counts(self) -> list[int]:
        return [math.ceil(n / self.page_size) for n in self.lengths_B.tolist()]


def make_case(
    lengths: list[int],
    keep: list[int],
    *,
    K: int = 2,
    G: int = 2,
    D: int = 16,
    S: int = 4,
    rows: int = 1,
    first: int = 1,
    last: int = 2,
    score: str = "group_mean",
    whole: bool = True,
    spare: int = 3,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Case:
    """`whole`: small whole numbers, so that scores are exact and ties are common.

    Landmarks of pages that are partly filled, or that no sequence has, are NaN.
    """
    noise = torch.Generator().manual_seed(seed)
    B = len(lengths)
    counts = [math.ceil(n / S) for n in lengths]
    P = max([*counts, 1])
    N = max(sum(counts) + spare, 1)

    def draw(*shape: int) -> Tensor:
        if whole:
            return torch.randint(-2, 3, shape, generator=noise).float()
        return torch.randn(shape, generator=noise)

    marks = draw(N, K, rows, D).sort(dim=2).values
    order = torch.randperm(N, generator=noise).tolist()
    table = torch.full((B, P), order[-1], dtype=torch.int32)
    full = set()
    for b, count in enumerate(counts):
        own = [order.pop() for _ in range(count)]
        table[b, :count] = torch.tensor(own, dtype=torch.int32)
        full |= set(own[: lengths[b] // S])
    marks[[n for n in range(N) if n not in full]] = float("nan")
    reserved = min(first + last, P)
    return Case(
        draw(B, K, G, D).to(device, dtype),
        marks.to(device, dtype),
        table.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        torch.tensor(keep, dtype=torch.int32, device=device),
        S,
        first,
        last,
        min(max([*keep, reserved]), P),
        score,
    )


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(0, 90), min_size=1, max_size=3))
    return {
        "lengths": lengths,
        "keep": [draw(st.integers(0, 25)) for _ in lengths],
        "K": draw(st.integers(1, 3)),
        "G": draw(st.sampled_from([1, 2, 4])),
        "D": draw(st.sampled_from([8, 16, 24])),
        "S": draw(st.sampled_from([1, 3, 4, 8])),
        "rows": draw(st.integers(1, 2)),
        "first": draw(st.integers(0, 2)),
        "last": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 99)),
    }


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=30)
@given(call=calls(), dtype=st.sampled_from(DTYPES))
def test_exact_scores_give_the_pages_of_the_definition(
    device: str, call: dict[str, Any], dtype: torch.dtype
) -> None:
    """Whole numbers and groups of 1, 2 or 4: every score is exact, and many are equal."""
    case = make_case(**call, device=device, dtype=dtype)
    with poisoned():
        ours = case.run("triton")
    assert ours.dtype == torch.int32
    assert ours.tolist() == case.run("torch").tolist()


def check_by_scores(case: Case, ours: Tensor, close: float) -> None:
    """Right number of pages, the reserved ones, and none left out that scores clearly higher."""
    marks = case.marks_NKRD.double()[case.table_BP.long()]
    counts = torch.tensor(case.counts(), device=case.q_BKGD.device)
    P = case.table_BP.shape[1]
    index = torch.arange(P, device=counts.device)
    free = (index >= case.first) & (index < (counts - case.last)[:, None])
    scores = naive.page_scores(case.q_BKGD.double(), marks, free, case.score)
    for b, count in enumerate(counts.tolist()):
        kept = max(int(case.keep_B[b]), case.first + case.last)
        kept = min(kept, case.width, count)
        for k in range(case.q_BKGD.shape[1]):
            row = ours[b, k].tolist()
            pages = row[:kept]
            assert row[kept:] == [P] * (len(row) - kept)
            assert pages == sorted(set(pages)) and all(0 <= p < count for p in pages)
            reserved = {p for p in range(count) if p < case.first or p >= count - case.last}
            if kept < count:
                assert reserved <= set(pages)
            others = [p for p in range(count) if p not in reserved]
            inside = [float(scores[b, k, p]) for p in others if p in pages]
            outside = [float(scores[b, k, p]) for p in others if p not in pages]
            if inside and outside:
                assert min(inside) >= max(outside) - close * max(1.0, abs(max(outside)))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=20)
@given(
    call=calls(),
    group=st.sampled_from([1, 3, 5]),
    score=st.sampled_from(["group_mean", "softmax_max"]),
    dtype=st.sampled_from(DTYPES),
)
def test_no_page_is_left_out_that_scores_higher(
    device: str, call: dict[str, Any], group: int, score: str, dtype: torch.dtype
) -> None:
    call |= {"G": group, "score": score, "whole": False}
    case = make_case(**call, device=device, dtype=dtype)
    with poisoned():
        ours = case.run("triton")
    check_by_scores(case, ours, 1e-5 if dtype == torch.float32 else 1e-4)
    assert torch.equal(ours, case.run("triton"))


@pytest.mark.gpu
@pytest.mark.parametrize("score", ["group_mean", "softmax_max"])
@pytest.mark.parametrize(("rows", "G", "D"), [(1, 2, 128), (2, 5, 80), (1, 8, 256), (2, 3, 64)])
@pytest.mark.parametrize("S", [4, 16, 64])
def test_long_sequences(score: str, rows: int, G: int, D: int, S: int) -> None:
    lengths, keep = [32_768, 2_000, 100, 0, 9_999], [1024 // S, 256 // S, 3, 0, 4096 // S]
    case = make_case(
        lengths, keep, K=3, G=G, D=D, S=S, rows=rows, score=score, whole=False,
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    with poisoned():
        check_by_scores(case, case.run("triton"), 1e-4)


@pytest.mark.gpu
def test_as_many_pages_as_a_program_can_rank() -> None:
    """128k tokens at page 4, and ties in every place."""
    case = make_case([131_072], [9_000], K=1, G=1, D=16, S=4, device="cuda", dtype=torch.bfloat16)
    assert case.table_BP.shape[1] == 32_768
    assert torch.equal(case.run("triton").long(), case.run("torch"))


@pytest.mark.parametrize("device", DEVICES)
def test_scores_of_either_sign_of_zero_and_huge_ones_are_ranked(device: str) -> None:
    """-0 ties with 0, the least float is still a page, and equal ones go by index."""
    case = make_case([40], [8], K=1, G=1, D=8, S=4, first=0, last=1, device=device)
    case.q_BKGD.zero_()
    case.q_BKGD[..., 0] = 1.0
    case.marks_NKRD.zero_()
    values = [0.0, -0.0, -3e38, 3e38, -0.0, 0.0, -1.0, -3e38, 0.0]
    for page, value in enumerate(values):
        case.marks_NKRD[int(case.table_BP[0, page]), 0, 0, 0] = value
    order = [3, 0, 1, 4, 5, 8, 6, 2, 7]
    for keep in range(1, 10):
        case.keep_B.fill_(keep)
        case.width = max(keep, 1)
        assert case.run("triton")[0, 0].tolist() == sorted([*order[: keep - 1], 9])


@pytest.mark.parametrize("device", DEVICES)
def test_neighbours_and_width_change_nothing(device: str) -> None:
    both = make_case([70, 33], [9, 5], device=device, whole=False)
    chosen = both.run("triton")
    both.width = both.table_BP.shape[1]
    wide = both.run("triton")
    assert torch.equal(wide[:, :, :9].clamp(max=18), chosen.clamp(max=18))
    assert bool((wide[:, :, 9:] == 18).all())


def test_kept_pages_follow_the_schedule() -> None:
    edges, budgets = torch.tensor([0, 100, 200]), torch.tensor([32, 64, 2**31 - 1])
    lengths = torch.tensor([0, 1, 50, 99, 100, 199, 200, 1000], dtype=torch.int32)
    kept = kept_pages(lengths, edges, budgets, page_size=8, reserved=3)
    assert kept.dtype == torch.int32
    assert kept.tolist() == [0, 1, 4, 4, 8, 8, 25, 125]
    least = kept_pages(lengths, edges, torch.tensor([8, 8, 8]), page_size=8, reserved=3)
    assert least.tolist() == [0, 1, 3, 3, 3, 3, 3, 3]


# ------------------------------------------------------------------ what is refused
def test_what_does_not_fit_is_named() -> None:
    def refused(**changes: Any) -> str:
        case = make_case([30, 9], [5, 3])
        case.__dict__.update(changes)
        with pytest.raises(ValueError, match=r"^page_choice: ") as caught:
            case.run(None)
        return str(caught.value)

    whole = torch.zeros(2, dtype=torch.int32)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"q_BKGD": torch.zeros(2, 4, 16)}, "q must be"),
        ({"q_BKGD": torch.zeros(2, 2, 16, 2).transpose(2, 3)}, "contiguous in its last"),
        ({"marks_NKRD": torch.zeros(9, 2, 3, 16)}, "landmarks must be"),
        ({"marks_NKRD": torch.zeros(9, 2, 16, 2).transpose(2, 3)}, "follow each other"),
        ({"marks_NKRD": torch.zeros(9, 2, 1, 16).double()}, "dtype and device of q"),
        ({"table_BP": torch.zeros(3, 3, dtype=torch.int32)}, "table must be"),
        ({"keep_B": torch.zeros(2)}, "keep must hold"),
        ({"lengths_B": whole[:1]}, "lengths must be"),
        ({"width": 1}, "width must be 3 to 8"),
        ({"width": 9}, "width must be 3 to 8"),
        ({"last": 0}, "last must be 1 or more"),
        ({"first": -1}, "first must be 0 or more"),
        ({"score": "mean"}, "no score is called 'mean'"),
        ({"page_size": 0}, "page_size must be"),
    ]
    for changes, words in wrong:
        assert words in refused(**changes), changes


def test_page_numbers_out_of_range_are_named_in_debug_mode(monkeypatch: Any) -> None:
    case = make_case([30, 9], [5, 3])
    case.table_BP[1, 2] = -1
    monkeypatch.setenv("SPARROW_DEBUG", "1")
    with pytest.raises(ValueError, match=r"table\[1, 2\] is page -1"):
        case.run(None)
