"""Sparse attention for training: equal to decode token by token, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.dispatch import Backend
from sparrow_kernels.landmarks.naive import Landmark, page_landmarks
from sparrow_kernels.page_choice.naive import Score, choose_pages, page_scores
from sparrow_kernels.paged_decode.naive import paged_decode
from sparrow_kernels.sparse_attention import PageBits, PageRule, sparse_attention
from sparrow_kernels.sparse_attention import choose_pages as choose_all
from tests.kernels.devices import DEVICES, dtypes_of, poisoned

Shape = tuple[int, int, int]
"""Query heads, KV heads, head dim."""


def rule_of(
    page_size: int,
    longest: int,
    budget: int,
    first: int = 1,
    last: int = 2,
    landmark: Landmark = "mean",
    score: Score = "group_mean",
) -> PageRule:
    """Keep `budget` pages up to length 40, and two more beyond it."""
    length_N = torch.arange(longest + 1)
    keep_N = torch.where(length_N < 40, budget, budget + 2).clamp(min=first + last)
    return PageRule(page_size, keep_N, first, last, landmark, score)


@dataclass
class Case:
    """Sequences end to end, and the rule they choose by."""

    q_LHD: Tensor
    k_LKD: Tensor
    v_LKD: Tensor
    offsets: list[int]
    prompts: list[int]
    rule: PageRule

    @property
    def scale(self) -> float:
        return float(self.q_LHD.shape[-1]) ** -0.5

    def to(self, device: str, dtype: torch.dtype) -> Case:
        moved = (x.to(device, dtype) for x in (self.q_LHD, self.k_LKD, self.v_LKD))
        return Case(*moved, self.offsets, self.prompts, self.rule)

    def choose(self, backend: Backend) -> PageBits:
        with poisoned():
            return choose_all(
                self.q_LHD, self.k_LKD, self.offsets, self.prompts, self.rule, backend=backend
            )

    def attend(self, pages: PageBits, backend: Backend) -> list[Tensor]:
        """The output, and the gradients of q, k and v for a fixed one of the output."""
        given = [x.detach().requires_grad_() for x in (self.q_LHD, self.k_LKD, self.v_LKD)]
        noise = torch.Generator().manual_seed(1)
        grad = torch.randn(self.q_LHD.shape, generator=noise).to(self.q_LHD)
        with poisoned():
            out = sparse_attention(*given, pages, self.offsets, self.scale, backend=backend)
            return [out.detach(), *torch.autograd.grad(out, given, grad)]


def make_case(
    lengths: Sequence[int],
    prompts: Sequence[int],
    shape: Shape,
    rule: PageRule,
    seed: int = 0,
    whole: bool = False,
) -> Case:
    """In float64 on the CPU; `whole` numbers are added without rounding and often tie."""
    H, K, D = shape
    offsets = [0, *accumulate(lengths)]
    noise = torch.Generator().manual_seed(seed)

    def normal(heads: int) -> Tensor:
        x = torch.randn((offsets[-1], heads, D), generator=noise, dtype=torch.float64)
        return x.round() if whole else x

    return Case(normal(H), normal(K), normal(K), offsets, list(prompts), rule)


# ------------------------------------------------------------------------ the definition
def decode_rows(case: Case, start: int, end: int, prompt: int) -> Tensor:
    """What decode computes for each generated token of one sequence, one step after the other."""
    rule, S = case.rule, case.rule.page_size
    q_THD, k_TKD, v_TKD = (x[start:end] for x in (case.q_LHD, case.k_LKD, case.v_LKD))
    T, K, D = k_TKD.shape
    P = -(-T // S)
    # a pool with holes: pages lie in it in any order, between pages of nobody
    order = torch.randperm(2 * P, generator=torch.Generator().manual_seed(3))[:P]
    pools = [torch.full((2 * P, K, S, D), float("nan"), dtype=torch.float64) for _ in range(2)]
    for pool in pools:
        pool[order] = 0.0
    rows = []
    for t in range(T):
        for pool, x in zip(pools, (k_TKD, v_TKD), strict=True):
            pool[order[t // S], :, t % S] = x[t]
        if t < prompt:
            continue
        length = torch.tensor([t + 1])
        pages = -(-length // S)
        used = int(pages)
        marks = torch.stack(
            [
                page_landmarks(pools[0][order[p], None], rule.landmark)[0]
                if (p + 1) * S <= t + 1
                else torch.full((K, 1 if rule.landmark == "mean" else 2, D), float("nan")).double()
                for p in range(used)
            ]
        )
        index = torch.arange(used)[None]
        candidate = (index >= rule.first) & (index < used - rule.last)
        q = q_THD[t].view(1, K, -1, D)
        # a landmark that is not there yet would be NaN in the scores: only candidates may be read
        marks = torch.where(candidate[0, :, None, None, None], marks, 0.0)
        scores = page_scores(q, marks[None], candidate, rule.score)
        keep = torch.minimum(rule.keep_N[length], pages)
        chosen = choose_pages(scores, pages, keep, rule.first, rule.last, int(keep))
        table = order[None, :used]
        out = paged_decode(q, *pools, table, chosen, length, case.scale).out_BKGD
        rows.append(out.view(1, -1, D))
    return torch.cat(rows) if rows else case.q_LHD[:0]


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=3),
    prompt=st.integers(1, 20),
    shape=st.sampled_from([(1, 1, 4), (4, 2, 8), (5, 1, 3)]),
    page_size=st.sampled_from([1, 3, 4, 8]),
    budget=st.integers(1, 9),
    reserved=st.sampled_from([(1, 2), (0, 1), (2, 1)]),
    landmark=st.sampled_from(["mean", "minmax"]),
    score=st.sampled_from(["group_mean", "softmax_max"]),
    seed=st.integers(0, 99),
)
def test_the_definition_is_decode_token_by_token(
    lengths: list[int],
    prompt: int,
    shape: Shape,
    page_size: int,
    budget: int,
    reserved: tuple[int, int],
    landmark: Landmark,
    score: Score,
    seed: int,
) -> None:
    rule = rule_of(page_size, max(lengths), budget, *reserved, landmark, score)
    prompts = [min(prompt, n) for n in lengths]
    case = make_case(lengths, prompts, shape, rule, seed)
    out = case.attend(case.choose("torch"), "torch")[0]
    for (start, end), first in zip(pairwise(case.offsets), prompts, strict=True):
        told = decode_rows(case, start, end, first)
        torch.testing.assert_close(out[start + first : end], told, atol=1e-12, rtol=1e-12)


def causal(case: Case) -> Tensor:
    """Torch's own full attention, sequence by sequence."""
    outs = []
    for start, end in pairwise(case.offsets):
        q, k, v = (x[start:end].transpose(0, 1) for x in (case.q_LHD, case.k_LKD, case.v_LKD))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        outs.append(out.transpose(0, 1))
    return torch.cat(outs)


def test_prompts_and_budgets_that_hold_everything_are_full_attention() -> None:
    for prompts, budget in (([40, 25], 3), ([1, 1], 50)):
        case = make_case([40, 25], prompts, (4, 2, 8), rule_of(4, 40, budget))
        out = case.attend(case.choose("torch"), "torch")[0]
        torch.testing.assert_close(out, causal(case), atol=1e-12, rtol=1e-12)


@settings(max_examples=40)
@given(K=st.integers(1, 3), L=st.integers(1, 40), P=st.integers(1, 70), seed=st.integers(0, 99))
def test_bits_come_back(K: int, L: int, P: int, seed: int) -> None:
    chosen = torch.rand((K, L, P), generator=torch.Generator().manual_seed(seed)) < 0.5
    bits = PageBits.pack(chosen, 4)
    assert bits.words_KWL.dtype == torch.int32 and bits.words_KWL.is_contiguous()
    back = bits.unpack()
    assert torch.equal(back[..., :P], chosen)
    assert not back[..., P:].any()


# ------------------------------------------------------------------------ the kernels
@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.sampled_from([1, 17, 63, 100]), min_size=1, max_size=2),
    prompt=st.integers(1, 20),
    shape=st.sampled_from([(1, 1, 4), (4, 2, 8), (4, 1, 16)]),
    page_size=st.sampled_from([1, 2, 4, 16]),
    budget=st.integers(1, 9),
    reserved=st.sampled_from([(1, 2), (0, 1), (2, 1)]),
    landmark=st.sampled_from(["mean", "minmax"]),
    seed=st.integers(0, 99),
)
def test_the_kernel_chooses_the_same_pages_ties_too(
    device: str,
    lengths: list[int],
    prompt: int,
    shape: Shape,
    page_size: int,
    budget: int,
    reserved: tuple[int, int],
    landmark: Landmark,
    seed: int,
) -> None:
    rule = rule_of(page_size, max(lengths), budget, *reserved, landmark)
    prompts = [min(prompt, n) for n in lengths]
    # whole numbers and sizes that are powers of 2: scores are exact, many are equal
    case = make_case(lengths, prompts, shape, rule, seed, whole=True)
    told = case.choose("torch").words_KWL
    for dtype in dtypes_of(device):
        ours = case.to(device, dtype)
        if dtype == torch.bfloat16 and landmark == "mean":
            continue  # the landmark is rounded, the definition in float64 does not round it
        assert torch.equal(ours.choose("triton").words_KWL.cpu(), told)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("score", ["group_mean", "softmax_max"])
@pytest.mark.parametrize("landmark", ["mean", "minmax"])
@pytest.mark.parametrize("shape", [(5, 1, 20), (6, 2, 8)])
def test_the_kernel_chooses_the_same_pages_of_any_numbers(
    device: str, score: Score, landmark: Landmark, shape: Shape
) -> None:
    rule = rule_of(4, 100, 5, landmark=landmark, score=score)
    case = make_case([100, 41], [7, 3], shape, rule)
    told = case.choose("torch").words_KWL
    assert torch.equal(case.to(device, torch.float32).choose("triton").words_KWL.cpu(), told)


def test_chunks_of_rows_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparrow_kernels.sparse_attention import choice

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    case = make_case([90], [5], (2, 1, 8), rule_of(4, 90, 4)).to("cpu", torch.float32)
    monkeypatch.setattr(choice, "MOST_SCORES", 23 * 30)
    assert torch.equal(case.choose("triton").words_KWL, case.choose("torch").words_KWL)


def assert_near(ours: list[Tensor], told: list[Tensor], dtype: torch.dtype) -> None:
    """Errors measured by the size of the whole: bfloat16 rounds probabilities and their gradients.

    Every number must be there: an output that was not written is NaN.
    """
    most = 1e-5 if dtype == torch.float32 else 1e-2
    for name, x, y in zip(("out", "of q", "of k", "of v"), ours, told, strict=True):
        assert x.dtype == dtype
        # of a sequence of one token the gradients of q and k are 0
        error = float((x.cpu().double() - y).norm() / y.norm().clamp(min=1.0))
        assert error < most, f"{name}: {error}"


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=6)
@given(
    lengths=st.sampled_from([[1], [63], [40, 1, 22], [33, 64]]),
    shape=st.sampled_from([(1, 1, 16), (4, 2, 20), (5, 1, 8)]),
    page_size=st.sampled_from([1, 4, 16, 64]),
    budget=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_outputs_and_gradients_are_those_of_the_definition(
    device: str, lengths: list[int], shape: Shape, page_size: int, budget: int, seed: int
) -> None:
    rule = rule_of(page_size, max(lengths), budget)
    case = make_case(lengths, [1] * len(lengths), shape, rule, seed)
    for dtype in dtypes_of(device):
        ours = case.to(device, dtype)
        rounded = ours.to("cpu", torch.float64)
        pages = rounded.choose("torch")
        there = PageBits(pages.words_KWL.to(device), pages.page_size)
        assert_near(ours.attend(there, "triton"), rounded.attend(pages, "torch"), dtype)


REAL: list[tuple[Shape, int, torch.dtype]] = [
    ((16, 8, 128), 16, torch.bfloat16),
    ((16, 8, 128), 4, torch.bfloat16),
    ((16, 8, 128), 128, torch.bfloat16),
    ((16, 8, 128), 16, torch.float16),
    ((16, 8, 128), 16, torch.float32),
    ((9, 3, 64), 8, torch.bfloat16),
    ((5, 1, 80), 32, torch.bfloat16),
    ((8, 8, 96), 64, torch.bfloat16),
    ((4, 1, 256), 16, torch.bfloat16),
    ((8, 1, 64), 2, torch.bfloat16),
]


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [[2000], [100, 1, 777, 63]])
@pytest.mark.parametrize(("shape", "page_size", "dtype"), REAL)
def test_real_shapes_on_a_gpu(
    lengths: list[int], shape: Shape, page_size: int, dtype: torch.dtype
) -> None:
    case = make_case(lengths, [20] * len(lengths), shape, rule_of(page_size, 2000, 6))
    case.prompts = [min(20, n) for n in lengths]
    ours = case.to("cuda", dtype)
    pages = ours.choose("triton")
    wide = ours.to("cuda", torch.float64)
    told = [x.cpu() for x in wide.attend(pages, "torch")]
    assert_near(ours.attend(pages, "triton"), told, dtype)


@pytest.mark.gpu
def test_equal_inputs_give_equal_bits_on_a_gpu() -> None:
    case = make_case([3000, 500], [30, 7], (16, 8, 128), rule_of(16, 3000, 20))
    ours = case.to("cuda", torch.bfloat16)
    first, second = (ours.attend(ours.choose("triton"), "triton") for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_a_budget_that_holds_everything_is_full_attention_to_the_bit(device: str) -> None:
    """Chosen by budget or as a prompt: the same bits, so the same numbers."""
    dtype = dtypes_of(device)[-1]
    lengths = [45, 20]
    wide = make_case(lengths, [1, 1], (4, 2, 16), rule_of(4, 45, 99)).to(device, dtype)
    whole = make_case(lengths, lengths, (4, 2, 16), rule_of(4, 45, 1)).to(device, dtype)
    pages = wide.choose("triton")
    assert torch.equal(pages.words_KWL, whole.choose("triton").words_KWL)
    out = wide.attend(pages, "triton")[0]
    torch.testing.assert_close(
        out.cpu().double(),
        causal(wide.to("cpu", torch.float64)),
        atol=1e-5 if dtype == torch.float32 else 0.02,
        rtol=0,
    )


# ------------------------------------------------------------------------ what is refused
def refused(change: Any, says: str) -> None:
    case = make_case([20, 9], [2, 2], (4, 2, 8), rule_of(4, 20, 4)).to("cpu", torch.float32)
    pages = case.choose("torch")
    with pytest.raises(ValueError, match=says):
        change(case, pages)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c, p: setattr(c, "k_LKD", c.k_LKD[:-1]), "need equal L and D"),
        (lambda c, p: setattr(c, "q_LHD", c.q_LHD[:, :3]), "H a multiple of K"),
        (lambda c, p: setattr(c, "k_LKD", c.k_LKD.half()), "keys torch.float16"),
        (lambda c, p: setattr(c, "v_LKD", c.v_LKD[:, :1]), "values must be like keys"),
        (lambda c, p: setattr(c, "offsets", [0, 20, 28]), "end with 29"),
        (lambda c, p: setattr(c, "offsets", [0, 20, 20, 29]), "must rise"),
        (lambda c, p: setattr(c, "q_LHD", c.q_LHD.transpose(0, 1).contiguous().transpose(0, 1)),
         "must be contiguous"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_one_clear_error(
    change: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def run(case: Case, pages: PageBits) -> None:
        change(case, pages)
        case.attend(pages, "triton")

    refused(run, says)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (lambda c, p: c.attend(PageBits(p.words_KWL[..., :-1], 4), "triton"), "do not fit keys"),
        (lambda c, p: c.attend(PageBits(p.words_KWL, 3), "triton"), "power of 2, not 3"),
        (lambda c, p: c.attend(p, "triton"), "needs CUDA tensors"),
        (lambda c, p: c.choose("triton"), "needs CUDA tensors"),
        (lambda c, p: choose_all(c.q_LHD, c.k_LKD, c.offsets, [1], c.rule), "1 prompts but 2"),
        (lambda c, p: choose_all(c.q_LHD, c.k_LKD, c.offsets, [1, 1], rule_of(4, 12, 4)),
         "ends at length 12, the longest sequence has 20"),
        (lambda c, p: PageRule(0, c.rule.keep_N), "page_size >= 1"),
        (lambda c, p: PageRule(4, c.rule.keep_N, 1, 0), "last >= 1"),
        (lambda c, p: PageRule(4, c.rule.keep_N.int()), "int64"),
        (lambda c, p: PageRule(4, c.rule.keep_N, 3, 3), "at length 17 the rule keeps 4 pages"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(run: Any, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1" if "CUDA" not in says else "0")
    refused(run, says)


@pytest.mark.parametrize("change", [lambda x: x | 4, lambda x: x & ~1])
def test_debug_mode_looks_at_the_choice(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case([20, 9], [2, 2], (4, 2, 8), rule_of(4, 20, 4)).to("cpu", torch.float32)
    pages = case.choose("torch")
    args = (case.q_LHD, case.k_LKD, case.v_LKD, pages, case.offsets, case.scale)
    sparse_attention(*args, debug=True)
    pages.words_KWL[1, 0, 21] = change(pages.words_KWL[1, 0, 21])
    sparse_attention(*args)
    monkeypatch.setenv("SPARROW_DEBUG", "1")
    with pytest.raises(ValueError, match=r"token 21 is on page 0 .* KV head 1 attends to pages"):
        sparse_attention(*args)
