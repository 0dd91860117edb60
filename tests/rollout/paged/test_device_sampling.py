"""Sampling by slots is sampling by configuration, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparrow_kernels.sampling import invert
from sparrow_kernels.sampling import uniform_noise as device_noise
from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.paged import sampling
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.sampling import sample, uniform_noise

CPU = torch.device("cpu")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.95, "top_k": 4},
    {"top_k": 3},
    {"top_k": 99},
    {"min_p": 0.2},
    {"temperature": 1.7, "top_p": 0.5},
    {"temperature": 0.0, "top_k": 1},
]


def make_slots(count: int, wide: torch.dtype = torch.float64) -> Slots:
    return Slots(count, 1, 4, 1, wide, wide, CPU)


@given(
    seed=st.integers(0, 2**32 - 1),
    keys=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**20)), min_size=1, max_size=20),
)
def test_the_noise_is_the_same_to_the_bit(seed: int, keys: list[tuple[int, int]]) -> None:
    samples, positions = (np.array(column, np.int64) for column in zip(*keys, strict=True))
    ours = device_noise(
        torch.full((len(keys),), seed), torch.from_numpy(samples), torch.from_numpy(positions)
    )
    assert ours.tolist() == uniform_noise(seed, samples, positions).tolist()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1000),
    which=st.lists(st.sampled_from(SETTINGS), min_size=1, max_size=6),
    wide=st.sampled_from([torch.float32, torch.float64]),
)
def test_each_slot_samples_by_its_own_settings(
    seed: int, which: list[dict[str, Any]], wide: torch.dtype
) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn((len(which), 9), generator=noise, dtype=torch.float64)
    logits = logits.to(wide)
    slots = make_slots(len(which) + 2, wide)
    for i, options in enumerate(which, 1):
        slots.set(i, RolloutConfig(**options), length=10 + i, sample=i, seed=seed)
    slots.push(len(which) + 2)
    drawn = sampling.draw(logits, slots, slice(1, 1 + len(which)), truncates=True)
    for row, options in enumerate(which):
        i = row + 1
        one = uniform_noise(seed, np.array([i]), np.array([10 + i]))
        alone = sample(logits[row : row + 1], RolloutConfig(**options), one)
        assert int(drawn.tokens[row]) == int(alone.tokens[0])
        assert float(drawn.logp[row]) == float(alone.logp[0])
        assert float(drawn.raw_logp[row]) == float(alone.raw_logp[0])


def test_without_truncation_the_sort_can_be_left_out() -> None:
    logits = torch.randn((3, 9), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slots = make_slots(3)
    for i, temperature in enumerate((0.0, 0.5, 1.0)):
        rollout = RolloutConfig(temperature=temperature)
        slots.set(i, rollout, length=5, sample=i, seed=1)
    both = [sampling.draw(logits, slots, slice(0, 3), truncates) for truncates in (False, True)]
    for a, b in zip(*both, strict=True):
        assert torch.equal(a, b)


def test_a_given_token_is_taken_with_the_policys_log_probability() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0]] * 3, dtype=torch.float64)
    slots = make_slots(3)
    for i, options in enumerate(({"top_k": 1}, {"temperature": 0.5}, {"temperature": 0.0})):
        slots.set(i, RolloutConfig(**options), length=5, sample=i, seed=1)  # type: ignore[arg-type]
    slots.force(0, np.array([2, 2, 2]))
    drawn = sampling.draw(logits, slots, slice(0, 3), truncates=True)
    assert drawn.tokens.tolist() == [2, 2, 2]
    expected = [(logits[0] / t).log_softmax(-1)[2].item() for t in (1.0, 0.5, 1.0)]
    assert drawn.logp.tolist() == drawn.raw_logp.tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [{}, {"top_k": 4, "temperature": 1.5}, {"top_p": 0.8}], ids=str)
def test_draws_follow_the_distribution(options: dict[str, Any]) -> None:
    """40,000 slots of one small vocabulary against its probabilities."""
    count, rollout = 40_000, RolloutConfig(**options)
    logits = torch.tensor([1.3, -0.4, 2.2, 0.1, -1.0, 0.9], dtype=torch.float64)
    slots = make_slots(count)
    for name in ("temperature", "top_p", "top_k", "min_p"):
        slots.host[name][:] = getattr(rollout, name)
    slots.host["forced"][:] = -1
    slots.host["sample"][:] = np.arange(count)
    slots.host["length"][:] = 17
    drawn = sampling.draw(logits.expand(count, -1), slots, slice(0, count), truncates=True)
    p = (logits / rollout.temperature).softmax(-1).numpy()
    order = np.argsort(-p)
    kept = order[: rollout.top_k or len(p)]
    kept = kept[np.cumsum(p[kept]) - p[kept] < rollout.top_p]
    expected = np.zeros_like(p)
    expected[kept] = p[kept] / p[kept].sum()
    counts = np.bincount(drawn.tokens.numpy(), minlength=len(p))
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    assert stats.chisquare(counts[inside], expected[inside] * count).pvalue > 1e-4


@pytest.mark.parametrize("vocabulary", [5000, 4097, 6144])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.2, "top_k": 3}, {"top_p": 0.5}], ids=str)
def test_a_long_vocabulary_is_searched_in_blocks(vocabulary: int, options: dict[str, Any]) -> None:
    """The same tokens as by one running sum, with the noise at its ends too."""
    noise = torch.Generator().manual_seed(vocabulary)
    count, rollout = 64, RolloutConfig(**options)
    logits = 3 * torch.randn((count, vocabulary), generator=noise, dtype=torch.float64)
    logits[3, 1000:] = -torch.inf
    slots = make_slots(count)
    for i in range(count):
        slots.set(i, rollout, length=9, sample=i, seed=2)
    keys = np.arange(count)
    told = sample(logits, rollout, uniform_noise(2, keys, np.full(count, 9)))
    drawn = sampling.draw(logits, slots, slice(0, count), truncates=True)
    assert drawn.tokens.tolist() == told.tokens.tolist()
    kept = torch.where(torch.rand(logits.shape, generator=noise) < 0.01, logits.exp(), 0.0)
    for end in (0.0, 1 - 2**-53, 1.0):
        picked = invert(kept, torch.full((count,), end, dtype=torch.float64))
        assert (kept.gather(1, picked[:, None]) > 0).all()
