"""The acceptance of two distributions, and what is measured beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from torch import Tensor

from sparrow_kernels.acceptance import (
    acceptance_from_hidden,
    acceptance_from_logits,
    top_k_acceptance,
)

temperatures = st.sampled_from([0.3, 0.6, 1.0, 2.0])
logits = st.floats(-40, 40) | st.just(-math.inf)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Two rows of logits, some of them -inf, and a token that neither rules out."""
    V = draw(st.integers(1, 9))
    rows = [draw(st.lists(logits, min_size=V, max_size=V)) for _ in range(2)]
    token = draw(st.integers(0, V - 1))
    for row in rows:
        row[token] = draw(st.floats(-40, 40))
    sparse, dense = (torch.tensor([row], dtype=torch.float64) for row in rows)
    return sparse, dense, torch.tensor([token])


@settings(max_examples=150)
@given(pair=pairs(), temperature=temperatures)
def test_acceptance_is_one_minus_total_variation(
    pair: tuple[Tensor, Tensor, Tensor], temperature: float
) -> None:
    sparse, dense, token = pair
    p, q = (special.softmax(x[0].numpy() / temperature) for x in (sparse, dense))
    told = acceptance_from_logits(sparse, dense, token, temperature)
    assert all(not torch.isnan(x).any() for x in told)
    assert float(told.acceptance) == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)
    assert 0 <= float(told.acceptance) <= 1
    assert float(told.logp_sparse) == pytest.approx(float(np.log(p[int(token)])), abs=1e-9)
    assert float(told.logp_dense) == pytest.approx(float(np.log(q[int(token)])), abs=1e-9)
    for ours, kl in (
        (told.kl_sparse_dense, special.rel_entr(p, q).sum()),
        (told.kl_dense_sparse, special.rel_entr(q, p).sum()),
        (told.entropy_dense, stats.entropy(q)),
    ):
        # scipy takes the logarithm of a quotient of tiny probabilities, which may underflow to 0
        if math.isfinite(kl):
            assert float(ours) == pytest.approx(float(kl), rel=1e-6, abs=1e-9)
        assert float(ours) >= -1e-12


@settings(max_examples=60)
@given(pair=pairs(), temperature=temperatures)
def test_acceptance_is_symmetric_and_one_for_equal_logits(
    pair: tuple[Tensor, Tensor, Tensor], temperature: float
) -> None:
    a, b, token = pair
    forth = acceptance_from_logits(a, b, token, temperature)
    back = acceptance_from_logits(b, a, token, temperature)
    assert torch.equal(forth.acceptance, back.acceptance)
    assert torch.equal(forth.kl_sparse_dense, back.kl_dense_sparse)
    same = acceptance_from_logits(a, a + 3.0, token, temperature)
    assert float(same.acceptance) == pytest.approx(1.0, abs=1e-12)
    assert float(same.acceptance) <= 1.0
    assert float(same.kl_sparse_dense) == pytest.approx(0.0, abs=1e-10)


def test_disjoint_distributions_have_no_acceptance_and_infinite_divergence() -> None:
    a = torch.tensor([[0.0, -math.inf]])
    told = acceptance_from_logits(a, a.flip(1), torch.tensor([0]), 1.0)
    assert float(told.acceptance) == 0.0
    assert float(told.kl_sparse_dense) == math.inf
    assert float(told.logp_dense) == -math.inf
    assert float(told.entropy_dense) == 0.0


def test_a_lower_temperature_sharpens_both_sides() -> None:
    """At temperature t the acceptance is that of the logits divided by t."""
    a, b = normal(5, 8), normal(5, 8, seed=1)
    tokens = torch.zeros(5, dtype=torch.long)
    cold = acceptance_from_logits(a, b, tokens, 0.5)
    scaled = acceptance_from_logits(a / 0.5, b / 0.5, tokens, 1.0)
    torch.testing.assert_close(cold, scaled, atol=1e-13, rtol=0)
    assert (cold.acceptance < acceptance_from_logits(a, b, tokens, 4.0).acceptance).all()


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_greedy_decoding_has_no_acceptance(temperature: float) -> None:
    with pytest.raises(ValueError, match="greedy"):
        acceptance_from_logits(normal(2, 3), normal(2, 3), torch.tensor([0, 1]), temperature)
    with pytest.raises(ValueError, match="greedy"):
        acceptance_from_hidden(
            normal(2, 3), normal(2, 3), normal(4, 3), torch.tensor([0, 1]), temperature
        )
    with pytest.raises(ValueError, match="greedy"):
        top_k_acceptance(normal(2, 3), normal(2, 3), 2, temperature)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_results_are_wide(dtype: torch.dtype) -> None:
    """bfloat16 logits differ by rounding only: their acceptance is near that of float64."""
    a, b = normal(50, 30), normal(50, 30, seed=1)
    tokens = torch.zeros(50, dtype=torch.long)
    exact = acceptance_from_logits(a, b, tokens, 1.0)
    told = acceptance_from_logits(a.to(dtype), b.to(dtype), tokens, 1.0)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(x.dtype == wide for x in told)
    close = {torch.float64: 0.0, torch.float32: 1e-6, torch.bfloat16: 0.02}[dtype]
    torch.testing.assert_close(told.acceptance.double(), exact.acceptance, atol=close, rtol=0)


@pytest.mark.parametrize("tokens", [0, 1, 7, 8, 9, 25])
def test_from_hidden_states_in_chunks_equals_from_logits(tokens: int) -> None:
    sparse, dense, head = normal(tokens, 6), normal(tokens, 6, seed=1), normal(11, 6, seed=2)
    picked = torch.arange(tokens) % 11
    whole = acceptance_from_logits(sparse @ head.T, dense @ head.T, picked, 0.7)
    parts = acceptance_from_hidden(sparse, dense, head, picked, 0.7, chunk=8)
    assert all(len(x) == tokens for x in parts)
    torch.testing.assert_close(parts, whole, atol=1e-12, rtol=0)


@settings(max_examples=100)
@given(pair=pairs(), temperature=temperatures, k=st.integers(1, 12))
def test_top_k_is_a_lower_bound_and_tells_the_mass_it_kept(
    pair: tuple[Tensor, Tensor, Tensor], temperature: float, k: int
) -> None:
    sparse, dense, token = pair
    exact = float(acceptance_from_logits(sparse, dense, token, temperature).acceptance)
    alpha, mass = (float(x) for x in top_k_acceptance(sparse, dense, k, temperature))
    assert alpha <= exact + 1e-12
    assert alpha <= mass + 1e-12
    q = special.softmax(dense[0].numpy() / temperature)
    assert mass == pytest.approx(np.sort(q)[::-1][:k].sum(), abs=1e-12)
    if k >= len(q):
        assert alpha == pytest.approx(exact, abs=1e-12)
        assert mass == pytest.approx(1.0, abs=1e-12)


def test_top_k_counts_only_tokens_in_both_sets() -> None:
    """The paper's estimator on four tokens by hand: {0, 1} against {0, 2} leaves token 0."""
    p, q = [0.5, 0.3, 0.15, 0.05], [0.4, 0.1, 0.45, 0.05]
    sparse, dense = (torch.tensor([x], dtype=torch.float64).log() for x in (p, q))
    alpha, mass = top_k_acceptance(sparse, dense, k=2, temperature=1.0)
    assert float(alpha) == pytest.approx(0.4)
    assert float(mass) == pytest.approx(0.85)
