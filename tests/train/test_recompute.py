"""Packed dense passes give what every sample gives alone: numbers and gradients, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_kernels.acceptance import acceptance_from_logits, top_k_acceptance
from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.train.forward import dense_hidden
from sparrow_lab.train.measure import (
    counts_by_prompt,
    histogram_of,
    recompute,
    token_logp,
)
from sparrow_lab.train.packing import pack
from tests.rollout.small_models import FAMILIES, own_copy, small_model
from tests.train.plain import (
    assert_close,
    gradients,
    random_batch,
    sample_hidden,
    sample_logp,
)

groups = st.lists(
    st.tuples(st.integers(1, 25), st.lists(st.integers(0, 9), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=30)
@given(
    shape=groups,
    family=st.sampled_from(FAMILIES),
    max_tokens=st.sampled_from([1, 40, 100, 16_384]),
    leave_out=st.sets(st.integers(0, 24), max_size=5),
    seed=st.integers(0, 99),
)
def test_every_token_is_packed_once_and_sees_only_its_own_text(
    shape: list[tuple[int, list[int]]],
    family: str,
    max_tokens: int,
    leave_out: set[int],
    seed: int,
) -> None:
    model: Any = small_model(family, 2)
    batch = random_batch(model, [p for p, _ in shape], [a for _, a in shape], seed)
    samples = [s for s in range(len(batch.generated_N)) if s not in leave_out]
    seen: list[tuple[int, int]] = []
    for rows in pack(batch, samples, max_tokens):
        alone_in_it = len(set(rows.sample_X.tolist())) == 1
        assert alone_in_it or len(rows.tokens_L) <= max_tokens
        with torch.no_grad():
            hidden = dense_hidden(model, rows)
        for s in set(rows.sample_X.tolist()):
            mine = rows.sample_X == s
            with torch.no_grad():
                alone = sample_hidden(model, batch, s)[rows.column_X[mine]]
            torch.testing.assert_close(hidden[mine], alone, atol=1e-11, rtol=0)
        seen += zip(rows.sample_X.tolist(), rows.column_X.tolist(), strict=True)
    wanted = [(s, t) for s in samples for t in range(int(batch.generated_N[s]))]
    assert sorted(seen) == wanted


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients_of_a_packed_pass_are_those_of_single_passes(
    family: str, temperature: float
) -> None:
    model: Any = own_copy(small_model(family, 2))
    batch = random_batch(model, [20, 3, 9], [[5, 1, 7, 0, 4], [6], [2, 2]])
    weights = torch.randn(8, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = torch.zeros((), dtype=torch.float64)
    for s in range(8):
        if n := int(batch.generated_N[s]):
            loss = loss + (weights[s, :n] * sample_logp(model, batch, s, temperature)).sum()
    loss.backward()
    plain = gradients(model)
    model.zero_grad()
    for rows in pack(batch, list(range(8)), max_tokens=60):
        at = (rows.sample_X, rows.column_X)
        hidden = dense_hidden(model, rows)
        logp = token_logp(hidden, model.lm_head.weight, batch.tokens_NT[at], temperature)
        (weights[at] * logp).sum().backward()
    assert_close(gradients(model), plain)


@settings(max_examples=15)
@given(shape=groups, temperature=st.sampled_from([0.7, 1.0]), seed=st.integers(0, 99))
def test_recompute_fills_exactly_the_generated_tokens(
    shape: list[tuple[int, list[int]]], temperature: float, seed: int
) -> None:
    model: Any = small_model("qwen3", 2)
    batch = random_batch(model, [p for p, _ in shape], [a for _, a in shape], seed)
    table = recompute(model, batch, temperature)
    short = recompute(model, batch, temperature, top_k=5)
    assert batch.hidden_NTM is not None
    head = model.lm_head.weight.detach()
    for name in ("acceptance_NT", "logp_dense_NT", "kl_NT", "entropy_NT", "kept_mass_NT"):
        assert torch.equal(torch.isnan(getattr(table, name)), ~batch.valid_NT), name
    for s, n in enumerate(batch.generated_N.tolist()):
        if not n:
            continue
        with torch.no_grad():
            dense = sample_hidden(model, batch, s) @ head.T
        sparse = batch.hidden_NTM[s, :n] @ head.T
        told = acceptance_from_logits(sparse, dense, batch.tokens_NT[s, :n], temperature)
        for ours, theirs in (
            (table.acceptance_NT, told.acceptance),
            (table.logp_dense_NT, told.logp_dense),
            (table.kl_NT, told.kl_sparse_dense),
            (table.entropy_NT, told.entropy_dense),
        ):
            torch.testing.assert_close(ours[s, :n], theirs, atol=1e-10, rtol=0)
        assert (table.kept_mass_NT[s, :n] == 1).all()
        alpha, mass = top_k_acceptance(sparse, dense, 5, temperature)
        torch.testing.assert_close(short.acceptance_NT[s, :n], alpha, atol=1e-10, rtol=0)
        torch.testing.assert_close(short.kept_mass_NT[s, :n], mass, atol=1e-10, rtol=0)
        torch.testing.assert_close(short.logp_dense_NT[s, :n], told.logp_dense, atol=1e-10, rtol=0)


def test_recompute_of_some_samples_leaves_the_others_alone() -> None:
    model = small_model("qwen3", 2)
    batch = random_batch(model, [5, 8], [[3, 4], [2, 6]])
    table = recompute(model, batch, 1.0, [1, 2])
    measured = ~torch.isnan(table.acceptance_NT)
    assert measured.sum(dim=1).tolist() == [0, 4, 2, 0]
    assert torch.isnan(recompute(model, batch, 1.0, []).acceptance_NT).all()


def test_recompute_needs_hidden_states() -> None:
    model = small_model("qwen3", 2)
    batch = random_batch(model, [5], [[3]])
    batch.hidden_NTM = None
    with pytest.raises(ValueError, match="keep_hidden"):
        recompute(model, batch, 1.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_dense_rollout_against_dense_recompute_is_the_ceiling(family: str) -> None:
    """The engine and transformers agree in float64, so that acceptance is 1 for every token."""
    model = small_model(family, 2)
    engine = RolloutEngine(model, Schedule.dense(4))
    prompts = [[1, 2, 3], [4] * 20]
    batch = engine.generate(prompts, 3, RolloutConfig(), max_new_tokens=8, stop_tokens=(5,))
    table = recompute(model, batch, 1.0)
    valid = batch.valid_NT
    assert float(table.acceptance_NT[valid].min()) > 1 - 1e-10
    torch.testing.assert_close(table.logp_dense_NT[valid], batch.logp_NT[valid], atol=1e-10, rtol=0)
    assert float(table.kl_NT[valid].abs().max()) < 1e-10
    sparse = RolloutEngine(model, Schedule.fixed(12, 4, dense_layers=0))
    batch = sparse.generate(prompts, 3, RolloutConfig(), max_new_tokens=8)
    table = recompute(model, batch, 1.0)
    assert float(table.acceptance_NT[:, 0].min()) > 1 - 1e-10, "the first token is dense"
    assert float(table.acceptance_NT[3:, 1:].min()) < 0.9, "sparse must differ"


def test_histogram_and_counts_hold_the_counted_tokens_only() -> None:
    model = small_model("qwen3", 2)
    batch = random_batch(model, [6, 15], [[1, 4, 0], [9, 3, 2]])
    table = recompute(model, batch, 1.0)
    histogram = histogram_of(batch, table, 8, 1.0)
    counted = batch.counted_NT
    assert histogram.tokens() == int(counted.sum()) == 3 + 8 + 2 + 1
    assert histogram.mean() == pytest.approx(float(table.acceptance_NT[counted].mean()))
    # lengths 7, 8, 9 of the first prompt and 16 .. 23, 16, 17, 16 of the second
    assert histogram.counts.sum(axis=1).tolist() == [1, 2, 11]
    assert histogram.prompts.tolist() == [1, 1, 1]
    counts, sums = counts_by_prompt(batch, table, 8, 4)
    assert counts.shape[:2] == (2, 4)
    assert counts.sum(axis=(1, 2)).tolist() == [3, 11]
    padded = np.pad(histogram.counts, [(0, 4 - len(histogram.counts)), (0, 0)])
    np.testing.assert_array_equal(counts.sum(axis=0), padded)
    np.testing.assert_allclose(sums[: len(histogram.sums)], histogram.sums)
