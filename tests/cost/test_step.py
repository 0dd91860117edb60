from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_analysis.cost import (
    Cost,
    ModelShape,
    decode_step_cost,
    forward_cost,
    load_hardware,
    load_shape,
    speedup,
)
from sparrow_lab.sparsity.presets import load_preset

H200 = load_hardware("h200")


def qwen(size: str) -> ModelShape:
    shape = load_shape(f"qwen3-{size}")
    assert shape is not None
    return shape


# Check vectors: H200, page size 16, weight bytes left out, scoring for every query head.
@pytest.mark.parametrize(
    ("size", "length", "budget", "linear", "dense", "sparse", "score", "no_skip", "skip_2"),
    [
        ("1.7b", 8000, 2048, 3.44e9, 1.910e11, 4.888e10, 5.97e9, 3.33, 2.86),
        ("1.7b", 32000, 4096, 3.44e9, 7.638e11, 9.777e10, 2.387e10, 6.13, 4.49),
        ("4b", 32000, 6144, 8.05e9, 9.915e11, 1.904e11, 3.098e10, 4.36, 3.67),
        ("8b", 32000, 5120, 1.514e10, 9.915e11, 1.586e11, 3.098e10, 4.92, 4.04),
        ("14b", 32000, 10240, 2.798e10, 1.107e12, 3.542e11, 3.459e10, 2.72, 2.51),
    ],
)
def test_check_vectors(
    size: str,
    length: int,
    budget: int,
    linear: float,
    dense: float,
    sparse: float,
    score: float,
    no_skip: float,
    skip_2: float,
) -> None:
    intensity = H200.intensity
    assert intensity == pytest.approx(206.1, abs=0.05)
    full, none, two = (
        decode_step_cost(
            qwen(size), length, 1, b, 16, skip, score="softmax_max", read_weights=False
        )
        for b, skip in ((None, 0), (budget, 0), (budget, 2))
    )
    assert full.linear.eflops(intensity) == pytest.approx(linear, rel=2e-3)
    assert full.attention.eflops(intensity) == pytest.approx(dense, rel=5e-4)
    assert none.attention.eflops(intensity) == pytest.approx(sparse, rel=5e-4)
    assert none.scoring.eflops(intensity) == pytest.approx(score, rel=1e-3)
    total = full.total.eflops(intensity)
    assert total / none.total.eflops(intensity) == pytest.approx(no_skip, abs=0.006)
    assert total / two.total.eflops(intensity) == pytest.approx(skip_2, abs=0.006)


@pytest.mark.parametrize(
    ("preset", "no_skip", "skip_2"),
    [
        ("qwen3-1.7b-0.86", 4.81, 3.78),
        ("qwen3-4b-0.86", 4.03, 3.45),
        ("qwen3-8b-0.86", 4.00, 3.43),
        ("qwen3-8b-0.87", 3.41, 3.01),
        ("qwen3-14b-0.86", 2.71, 2.50),
    ],
)
def test_mean_speedups_of_the_papers_schedules(preset: str, no_skip: float, skip_2: float) -> None:
    shape, schedule = qwen(preset.split("-")[1]), load_preset(preset)
    lengths = np.arange(200, 37_001)
    budgets = schedule.budgets_for(lengths)

    def total(budget: object, skip: int) -> float:
        cost = decode_step_cost(
            shape,
            lengths,
            1,
            budget,  # type: ignore[arg-type]
            16,
            skip,
            score="softmax_max",
            read_weights=False,
        )
        return float(cost.total.eflops(H200.intensity).sum())

    assert total(None, 0) / total(budgets, 0) == pytest.approx(no_skip, abs=0.006)
    assert total(None, 0) / total(budgets, 2) == pytest.approx(skip_2, abs=0.006)


def test_landmark_reads_are_the_share_the_paper_calls_small() -> None:
    # At page 16 and 37k tokens: as much as 1156 tokens of KV, 28 % of a budget of 4096.
    cost = decode_step_cost(qwen("1.7b"), 37_000, 1, 4096, 16, 0, read_weights=False)
    assert cost.scoring.bytes / cost.attention.bytes * 4096 == pytest.approx(1156, abs=1)
    twice = decode_step_cost(qwen("1.7b"), 37_000, 1, 4096, 32, 0, read_weights=False)
    assert twice.scoring.bytes * 2 == pytest.approx(float(cost.scoring.bytes))


def test_nothing_is_scored_when_all_fits_the_budget() -> None:
    lengths = np.array([100, 4095, 4096, 4097])
    cost = decode_step_cost(qwen("1.7b"), lengths, 1, 4096, 16, 2)
    assert cost.scoring.flops[:3].tolist() == [0, 0, 0] and cost.scoring.flops[3] > 0
    dense = decode_step_cost(qwen("1.7b"), lengths, 1, None, 16, 2)
    assert cost.attention.bytes[:3].tolist() == dense.attention.bytes[:3].tolist()
    assert dense.scoring.bytes.tolist() == [0, 0, 0, 0]


def test_all_layers_dense_is_dense() -> None:
    sparse = decode_step_cost(qwen("4b"), 9000, 4, 1024, 16, 36).total
    dense = decode_step_cost(qwen("4b"), 9000, 4, None).total
    assert sparse.flops == dense.flops and sparse.bytes == dense.bytes


def test_weights_are_shared_by_the_batch_and_nothing_else_is() -> None:
    one = decode_step_cost(qwen("1.7b"), 1000, 1, 512)
    many = decode_step_cost(qwen("1.7b"), 1000, 8, 512)
    assert many.linear.bytes * 8 == one.linear.bytes == 2 * (1_409_410_048 + 311_164_928)
    assert many.linear.flops == one.linear.flops
    assert many.attention.bytes == one.attention.bytes
    assert decode_step_cost(qwen("1.7b"), 1, read_weights=False).linear.bytes == 0


def test_scores_and_landmarks_have_their_price() -> None:
    mean = decode_step_cost(qwen("4b"), 9000, 1, 1024).scoring
    per_head = decode_step_cost(qwen("4b"), 9000, 1, 1024, score="softmax_max").scoring
    bounds = decode_step_cost(qwen("4b"), 9000, 1, 1024, landmark="minmax").scoring
    assert per_head.flops == 4 * mean.flops and per_head.bytes == mean.bytes
    assert bounds.flops == 2 * mean.flops and bounds.bytes == 2 * mean.bytes


def test_layers_with_a_window_read_the_window_only() -> None:
    shape = dataclasses.replace(qwen("1.7b"), windows=(512,) * 28)
    cost = decode_step_cost(shape, np.array([100, 512, 9000]), 1, 256, 16, 0)
    assert cost.attention.bytes[1] == cost.attention.bytes[2] > cost.attention.bytes[0]
    assert not cost.scoring.flops.any()


@given(st.integers(1, 50_000), st.integers(1, 20_000), st.sampled_from([4, 8, 16, 32, 128]))
def test_sparse_attention_never_reads_more_keys_and_bigger_pages_fewer_landmarks(
    length: int, budget: int, page: int
) -> None:
    sparse = decode_step_cost(qwen("1.7b"), length, 1, budget, page)
    dense = decode_step_cost(qwen("1.7b"), length, 1, None, page)
    bigger = decode_step_cost(qwen("1.7b"), length, 1, budget, 2 * page)
    assert sparse.attention.bytes <= dense.attention.bytes
    assert bigger.scoring.bytes <= sparse.scoring.bytes
    assert bigger.attention.bytes == sparse.attention.bytes


def test_shapes_follow_the_lengths() -> None:
    assert decode_step_cost(qwen("1.7b"), 5).total.flops.shape == ()
    assert decode_step_cost(qwen("1.7b"), np.ones((2, 3))).total.bytes.shape == (2, 3)
    empty = decode_step_cost(qwen("1.7b"), np.array([]), 1, np.array([]))
    assert empty.total.flops.shape == (0,) and empty.sum().total.flops == 0


def test_forward_is_linear_plus_causal_pairs() -> None:
    shape = qwen("1.7b")
    cost = forward_cost(shape, 3)
    expected = 2 * shape.body_parameters * 3 + 2 * shape.head_parameters + 28 * 4 * 16 * 128 * 6
    assert cost.flops == expected
    every = forward_cost(shape, 3, heads_at_all=True)
    assert every.flops - cost.flops == 4 * shape.head_parameters
    nothing = forward_cost(shape, 0)
    assert nothing.flops == 0 and nothing.bytes == 0
    window = dataclasses.replace(shape, windows=(2,) * 28)
    # pairs within a window of 2: 1 + 2 + 2
    assert forward_cost(shape, 3).flops - forward_cost(window, 3).flops == 28 * 4 * 16 * 128 * 1


def test_decode_after_prefill_costs_what_a_longer_prefill_does() -> None:
    """FLOPs of generating one by one are those of one forward (logits at every position)."""
    shape = qwen("1.7b")
    steps = decode_step_cost(shape, np.arange(1, 101)).sum().total
    assert steps.flops == forward_cost(shape, 100, heads_at_all=True).flops


def test_roofline_takes_the_slower_side() -> None:
    rates = H200.flops * H200.flops_share, H200.bandwidth * H200.bandwidth_share
    compute = Cost(np.array(rates[0]), np.array(0.5 * rates[1]))
    memory = Cost(np.array(0.0), np.array(2.0 * rates[1]))
    assert compute.roofline(H200) == pytest.approx(1) and memory.roofline(H200) == pytest.approx(2)


def test_speedup_of_nothing_is_nan() -> None:
    np.testing.assert_array_equal(speedup([4, 0, 1], [2, 0, 0]), [2, np.nan, np.nan])
    assert speedup(3, 2) == 1.5
