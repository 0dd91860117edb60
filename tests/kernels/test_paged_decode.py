"""Naive paged decode against torch's own attention over the chosen tokens, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.decode_cases import Case, make_case


def expected(case: Case) -> Tensor:
    """Gather each head's visible tokens one by one and hand them to torch."""
    B, K = case.q_BKGD.shape[:2]
    size, columns = case.keys_NKSD.shape[2], case.table_BP.shape[1]
    out = torch.zeros_like(case.q_BKGD)
    chosen_BKW = case.pages_BKW.expand(B, K, -1)
    for b in range(B):
        for k in range(K):
            rows = [
                (int(case.table_BP[b, page]), slot)
                for page in chosen_BKW[b, k].tolist()
                for slot in range(size)
                if page < columns and page * size + slot < int(case.lengths_B[b])
            ]
            k_TD = torch.stack([case.keys_NKSD[n, k, s] for n, s in rows])
            v_TD = torch.stack([case.values_NKSD[n, k, s] for n, s in rows])
            out[b, k] = F.scaled_dot_product_attention(
                case.q_BKGD[b, k], k_TD, v_TD, scale=case.scale
            )
    return out


@st.composite
def cases(draw: st.DrawFn) -> Case:
    B, K, G = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5]))
    S, D = draw(st.sampled_from([1, 2, 3, 4, 7, 8])), draw(st.sampled_from([1, 2, 5, 8, 12]))
    lengths = draw(st.lists(st.integers(1, 40), min_size=B, max_size=B))
    pages = st.sets(st.integers(0, 40), max_size=6)
    heads = st.lists(pages, min_size=K, max_size=K)
    keep = draw(st.lists(heads, min_size=B, max_size=B))
    spare, seed = draw(st.integers(0, 5)), draw(st.integers(0, 99))
    return make_case(B, K, G, S, D, lengths, keep, spare, seed)


@settings(max_examples=80)
@given(case=cases())
def test_any_shape_equals_torchs_attention(case: Case) -> None:
    torch.testing.assert_close(case.run(), expected(case), atol=1e-12, rtol=1e-12)


@settings(max_examples=40)
@given(case=cases())
def test_pool_rows_that_no_table_names_may_hold_nan(case: Case) -> None:
    before = case.run()
    for row in case.unnamed_rows():
        case.keys_NKSD[row] = float("nan")
        case.values_NKSD[row] = float("nan")
    assert torch.equal(case.run(), before)


@settings(max_examples=40)
@given(case=cases(), filler=st.sampled_from([0.0, 1e3, -1e6]))
def test_slots_beyond_the_length_may_hold_any_finite_number(case: Case, filler: float) -> None:
    """Left over from a page's former user; the cache starts from zeros, so they are finite."""
    before = case.run()
    size = case.keys_NKSD.shape[2]
    for b, length in enumerate(case.lengths_B.tolist()):
        last = int(case.table_BP[b, (length - 1) // size])
        for pool in (case.keys_NKSD, case.values_NKSD):
            pool[last, :, (length - 1) % size + 1 :] = filler
    torch.testing.assert_close(case.run(), before, atol=1e-12, rtol=1e-12)


@settings(max_examples=30)
@given(case=cases())
def test_pages_for_all_heads_and_all_sequences_at_once(case: Case) -> None:
    """Dense decode names its pages once: [1, 1, P] stands for every head and sequence."""
    P = case.table_BP.shape[1]
    case.pages_BKW = torch.arange(P)[None, None]
    once = case.run()
    B, K = case.q_BKGD.shape[:2]
    case.pages_BKW = case.pages_BKW.expand(B, K, P).contiguous()
    assert torch.equal(case.run(), once)
    torch.testing.assert_close(once, expected(case), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192])
@pytest.mark.parametrize("page_size", [8, 16, 64])
def test_head_dims_of_real_models(head_dim: int, page_size: int) -> None:
    lengths = [3 * page_size + 5, page_size]
    case = make_case(2, 2, 2, page_size, head_dim, lengths, [[{0, 2}, {1}], [{0}, {0}]], 1, 0)
    torch.testing.assert_close(case.run(), expected(case), atol=1e-12, rtol=1e-12)
    narrow = Case(**{**vars(case), "q_BKGD": case.q_BKGD.float()})
    narrow.keys_NKSD, narrow.values_NKSD = case.keys_NKSD.float(), case.values_NKSD.float()
    assert narrow.run().dtype == torch.float32
    torch.testing.assert_close(narrow.run().double(), expected(case), atol=1e-5, rtol=1e-4)


def test_bfloat16_keeps_its_dtype_and_softmax_in_float32() -> None:
    case = make_case(1, 1, 2, 4, 16, [30], [[{0, 3, 5}]], 0, 1)
    wide = case.run()
    for name in ("q_BKGD", "keys_NKSD", "values_NKSD"):
        setattr(case, name, getattr(case, name).bfloat16())
    out = case.run()
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), wide, atol=0.05, rtol=0.05)
