"""The objective on hand-made numbers: advantages, weights, clips, shares."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_lab.config.schema import TrainConfig
from sparrow_lab.train.grpo import (
    TokenWeights,
    group_advantages,
    importance_weights,
    policy_loss,
    reference_kl,
    token_shares,
)

INF = math.inf


def wide(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def fixed(**given_: Tensor) -> TokenWeights:
    n = len(next(iter(given_.values())))
    defaults = {
        "advantage": torch.ones(n, dtype=torch.float64),
        "old_logp": torch.zeros(n, dtype=torch.float64),
        "importance": torch.ones(n, dtype=torch.float64),
        "share": torch.ones(n, dtype=torch.float64),
    }
    return TokenWeights(**{**defaults, **given_})


# ------------------------------------------------------------------ advantages
rewards = st.sampled_from([0.0, 1.0, 0.1, 1 / 3, 1e-8])


@settings(max_examples=100)
@given(
    groups=st.lists(st.lists(rewards, min_size=4, max_size=4), min_size=1, max_size=5),
    divide=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_advantages_by_the_formula(
    groups: list[list[float]], divide: bool, dtype: torch.dtype
) -> None:
    values = torch.tensor(groups, dtype=dtype)
    got, same = group_advantages(values.flatten(), 4, divide)
    assert torch.isfinite(got).all()
    constant = [g for g in groups if len(set(g)) == 1]
    assert same == pytest.approx(len(constant) / len(groups))
    for group, mine in zip(groups, got.view(-1, 4), strict=True):
        if len(set(group)) == 1:
            assert mine.tolist() == [0.0] * 4
            continue
        told = np.array(group) - np.mean(group)
        if divide:
            told = told / (np.std(group, ddof=1) + 1e-6)
        np.testing.assert_allclose(
            mine.numpy(), told, atol=2e-5 if dtype == torch.float32 else 1e-9
        )
        assert abs(float(mine.sum())) < 1e-4


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("divide", [True, False])
def test_equal_rewards_give_exactly_nothing(value: float, divide: bool) -> None:
    """0.1 + 0.1 + 0.1 over 3 is not 0.1 in floats: the mean alone would leave a residue."""
    for samples in (2, 3, 7, 16):
        got, same = group_advantages(torch.full((samples,), value), samples, divide)
        assert got.tolist() == [0.0] * samples and same == 1.0


# ------------------------------------------------------------------ importance weights
def test_importance_is_truncated_once_and_detached() -> None:
    old = wide(-1.0, -1.0, -1.0).requires_grad_()
    rollout = wide(-1.0, -3.0, -0.5)
    weight = importance_weights(old, rollout, 2.0)
    assert not weight.requires_grad
    assert weight.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)])
    assert importance_weights(old, rollout, 100.0).tolist() == pytest.approx(
        [1.0, math.exp(2.0), math.exp(-0.5)]
    )
    off = importance_weights(old, rollout, None)
    assert off.tolist() == [1.0] * 3 and not off.requires_grad


def test_importance_of_tokens_that_one_side_rules_out() -> None:
    weight = importance_weights(wide(-INF, -1.0, -INF, -900.0), wide(-1.0, -INF, -INF, 0.0), 2.0)
    assert weight.tolist() == pytest.approx([0.0, 2.0, 0.0, math.exp(-20)])


# ------------------------------------------------------------------ the clipped surrogate
def test_at_the_old_policy_the_gradient_is_that_of_reinforce() -> None:
    old = wide(-0.3, -2.0, -1.0)
    logp = old.clone().requires_grad_()
    weights = {"advantage": wide(1.0, -0.5, 2.0), "importance": wide(0.5, 2.0, 1.0)}
    share = wide(0.25, 0.25, 0.5)
    loss = policy_loss(logp, fixed(old_logp=old, share=share, **weights), TrainConfig())
    loss.backward()
    expected = -weights["advantage"] * weights["importance"] * share
    assert loss.item() == pytest.approx(float(expected.sum()))
    torch.testing.assert_close(logp.grad, expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "moves"),
    [
        (1.1, 1.0, 1.1, True),
        (1.5, 1.0, 1.28, False),  # clipped above: no gain from raising it further
        (0.5, 1.0, 0.5, True),  # a fallen good token is not clipped
        (0.9, -1.0, -0.9, True),
        (0.5, -1.0, -0.8, False),  # clipped below
        (1.5, -1.0, -1.5, True),  # a risen bad token is not clipped
        (9.0, -1.0, -3.0, False),  # dual clip bounds it
        (9.0, 1.0, 1.28, False),
    ],
)
def test_clips(ratio: float, advantage: float, objective: float, moves: bool) -> None:
    config = TrainConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    logp = wide(math.log(ratio) - 1.0).requires_grad_()
    loss = policy_loss(logp, fixed(advantage=wide(advantage), old_logp=wide(-1.0)), config)
    loss.backward()
    assert -loss.item() == pytest.approx(objective)
    assert logp.grad is not None
    assert (float(logp.grad) != 0) == moves


def test_without_dual_clip_a_bad_token_that_rose_is_unbounded() -> None:
    logp = wide(math.log(9.0)).requires_grad_()
    loss = policy_loss(logp, fixed(advantage=wide(-1.0)), TrainConfig(dual_clip=None))
    assert loss.item() == pytest.approx(9.0)


@settings(max_examples=60)
@given(
    logp=st.lists(st.floats(-30, 0), min_size=1, max_size=6),
    old=st.floats(-30, 0),
    advantage=st.sampled_from([-2.0, -0.5, 0.0, 0.7, 3.0]),
    dual=st.sampled_from([None, 1.5, 3.0]),
)
def test_loss_by_the_formula(
    logp: list[float], old: float, advantage: float, dual: float | None
) -> None:
    config = TrainConfig(dual_clip=dual)
    n = len(logp)
    told = 0.0
    for x in logp:
        ratio = math.exp(min(max(x - old, -20), 20))
        inner = min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        if dual is not None and advantage < 0:
            inner = max(inner, dual * advantage)
        told -= inner / n
    given_ = fixed(
        advantage=torch.full((n,), advantage, dtype=torch.float64),
        old_logp=torch.full((n,), old, dtype=torch.float64),
        share=torch.full((n,), 1 / n, dtype=torch.float64),
    )
    assert float(policy_loss(wide(*logp), given_, config)) == pytest.approx(told, rel=1e-9)


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize(("logp", "old"), [(-INF, -INF), (-INF, -1.0), (-1.0, -INF)], ids=str)
def test_a_filtered_tokens_minus_infinity_makes_no_nan(
    logp: float, old: float, share: float
) -> None:
    """NaN would come from -inf - -inf, or from -inf times a mask of 0 (NeMo-RL PR 4154)."""
    raw = wide(logp, -1.0).requires_grad_()
    given_ = fixed(old_logp=wide(old, -1.5), share=wide(share, 0.5))
    loss = policy_loss(raw, given_, TrainConfig())
    loss = loss + reference_kl(raw, wide(-INF, -2.0), wide(share, 0.5))
    loss.backward()
    assert math.isfinite(loss.item())
    assert raw.grad is not None and torch.isfinite(raw.grad).all()
    assert float(raw.grad[0]) == 0.0 and float(raw.grad[1]) != 0.0


def test_minus_infinity_reaches_the_logits_as_zero_gradient() -> None:
    logits = wide(0.0, 1.0, -INF).requires_grad_()
    logp = logits.log_softmax(-1)
    given_ = fixed(old_logp=logp.detach(), share=wide(0.0, 0.5, 0.5))
    policy_loss(logp, given_, TrainConfig()).backward()
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_reference_kl_is_k3() -> None:
    logp = wide(-1.0, -2.0).requires_grad_()
    loss = reference_kl(logp, wide(-1.5, -2.0), wide(0.5, 0.5))
    gap = -0.5
    assert loss.item() == pytest.approx((math.exp(gap) - gap - 1) / 2)
    loss.backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([(1 - math.exp(gap)) / 2, 0.0])


# ------------------------------------------------------------------ length normalisation
LENGTHS = torch.tensor([1, 4, 0, 2, 9])
MEMBERS = torch.tensor([True, True, True, True, False])
SAMPLE_X = torch.tensor([0, 1, 1, 1, 1, 3, 3])


def shares(average: Any) -> list[float]:
    config = TrainConfig(loss_average=average)
    return token_shares(SAMPLE_X, LENGTHS, MEMBERS, config, longest=10).tolist()


def test_token_average_weighs_all_tokens_alike() -> None:
    assert shares("token") == pytest.approx([1 / 7] * 7)


def test_sequence_average_weighs_all_samples_alike() -> None:
    """One of the four members has no token and takes its quarter with it."""
    assert shares("sequence") == pytest.approx([1 / 4, *[1 / 16] * 4, *[1 / 8] * 2])


def test_fixed_length_weighs_by_the_cap_whatever_was_written() -> None:
    assert shares("fixed_length") == pytest.approx([1 / 40] * 7)


@pytest.mark.parametrize("average", ["token", "sequence", "fixed_length"])
def test_shares_are_exact_in_double(average: str) -> None:
    config = TrainConfig(loss_average=average)  # type: ignore[arg-type]
    many = torch.full((3,), 7)
    got = token_shares(torch.tensor([0, 1, 2]), many, many > 0, config, longest=7)
    assert got.tolist() == [1 / 21] * 3
