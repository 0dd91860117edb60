"""Draws follow the distribution they claim, and their noise belongs to the token."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.sampling import sample, uniform_noise
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import small_model

DRAWS = 40_000
UNLIKELY = 1e-4
"""Seeds are fixed, so a p-value below this is a fault and not bad luck."""


def noise_of(seed: int, samples: Any, positions: Any) -> npt.NDArray[np.float64]:
    samples, positions = np.broadcast_arrays(
        np.asarray(samples, np.int64), np.asarray(positions, np.int64)
    )
    return uniform_noise(seed, np.ascontiguousarray(samples), np.ascontiguousarray(positions))


def naive_distribution(logits: list[float], rollout: RolloutConfig) -> list[float]:
    """Probabilities after truncation, by the words of the options.

    Each option looks at the untruncated distribution at the temperature; a token stays if all of
    them keep it, and the most likely one always does.
    """
    top = max(logits)
    weights = [math.exp((x - top) / rollout.temperature) for x in logits]
    p = [w / sum(weights) for w in weights]
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept, before = [], 0.0
    for rank, i in enumerate(order):
        in_top_k = rollout.top_k == 0 or rank < rollout.top_k
        in_top_p = rollout.top_p >= 1 or before < rollout.top_p
        in_min_p = p[i] >= rollout.min_p * p[order[0]]
        if rank == 0 or (in_top_k and in_top_p and in_min_p):
            kept.append(i)
        before += p[i]
    total = sum(p[i] for i in kept)
    return [p[i] / total if i in kept else 0.0 for i in range(len(p))]


# ------------------------------------------------------------------ the distribution
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.9, "top_k": 5, "min_p": 0.05},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_the_truncated_distribution(
    options: dict[str, Any], dtype: torch.dtype
) -> None:
    rollout = RolloutConfig(**options)
    logits = [1.3, -0.4, 2.2, 0.1, -3.0, 0.9, 1.2, -1.5, 0.0, 2.0]
    expected = np.array(naive_distribution(logits, rollout))
    noise = noise_of(5, np.arange(DRAWS), 17)
    drawn = sample(torch.tensor([logits], dtype=dtype).expand(DRAWS, -1), rollout, noise)
    counts = np.bincount(drawn.tokens.numpy(), minlength=len(logits))
    assert counts[expected == 0].sum() == 0
    inside = expected > 0
    assert stats.chisquare(counts[inside], expected[inside] * DRAWS).pvalue > UNLIKELY
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(
        drawn.logp.numpy(), np.log(expected[drawn.tokens.numpy()]), atol=tolerance
    )


# thousandths: logits that differ by rounding alone have no order that two sums must agree on
distributions = st.lists(
    st.integers(-30_000, 30_000).map(lambda n: n / 1000), min_size=1, max_size=12
)


@settings(max_examples=150)
@given(
    logits=distributions,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-6, 0.3, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    noise=st.floats(0, 1, exclude_max=True),
)
def test_what_is_reported_is_what_was_sampled_from(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, noise: float
) -> None:
    rollout = RolloutConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    whole = naive_distribution(logits, RolloutConfig(temperature=temperature))
    ordered = sorted(whole, reverse=True)
    # a token on the very edge of top-p or min-p may fall on either side by rounding
    edges = [*np.cumsum(ordered) - top_p, *(np.array(ordered) - min_p * ordered[0])[1:]]
    if min(abs(e) for e in edges) < 1e-9:
        return
    expected = naive_distribution(logits, rollout)
    drawn = sample(torch.tensor([logits], dtype=torch.float64), rollout, np.array([noise]))
    token = int(drawn.tokens[0])
    assert expected[token] > 0
    assert float(drawn.logp[0]) == pytest.approx(math.log(expected[token]), abs=1e-9)
    assert float(drawn.raw_logp[0]) == pytest.approx(math.log(whole[token]), abs=1e-9)
    below = math.fsum(expected[:token])
    assert below - 1e-9 <= noise <= below + expected[token] + 1e-9


@settings(max_examples=60)
@given(logits=distributions, noise=st.sampled_from([0.0, 0.5, 1 - 2**-53]))
def test_the_ends_of_the_noise_draw_real_tokens(logits: list[float], noise: float) -> None:
    """A noise of 0 or just below 1 must not point before the first token or past the last."""
    for dtype in (torch.float32, torch.float64):
        values = torch.tensor([[-math.inf, *logits, -math.inf]], dtype=dtype)
        drawn = sample(values, RolloutConfig(), np.array([noise]))
        assert 1 <= int(drawn.tokens[0]) <= len(logits)
        assert math.isfinite(float(drawn.logp[0]))


def test_temperature_zero_takes_the_largest_and_the_first_among_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 2.0]])
    for options in ({}, {"top_k": 1}, {"top_p": 0.1}):
        rollout = RolloutConfig(temperature=0.0, **options)
        drawn = sample(logits, rollout, np.array([0.99, 0.99]))
        assert drawn.tokens.tolist() == [1, 0]
        assert drawn.logp.tolist() == [0.0, 0.0]
        torch.testing.assert_close(
            drawn.raw_logp, logits.log_softmax(-1)[[0, 1], [1, 0]], atol=0, rtol=0
        )


def test_equal_logits_beyond_top_k_lose_by_index() -> None:
    drawn = sample(torch.zeros(1000, 4), RolloutConfig(top_k=2), noise_of(0, np.arange(1000), 0))
    assert set(drawn.tokens.tolist()) == {0, 1}


# ------------------------------------------------------------------ the noise
def test_noise_is_uniform_along_seeds_samples_and_positions() -> None:
    n = np.arange(20_000)
    by_seed = np.array([noise_of(s, 3, 4)[()] for s in range(4000)])
    for values in (noise_of(7, n, 4), noise_of(7, 3, n), noise_of(7, n, n), by_seed):
        assert values.min() >= 0 and values.max() < 1
        counts = np.histogram(values, bins=50, range=(0, 1))[0]
        assert stats.chisquare(counts).pvalue > UNLIKELY


def test_neighbouring_keys_are_independent() -> None:
    """Pairs of neighbours fill the unit square evenly, along each part of the key."""
    n = np.arange(30_000)
    here = noise_of(7, n, 40)
    for there in (
        noise_of(8, n, 40),
        noise_of(7, n + 1, 40),
        noise_of(7, n, 41),
        noise_of(40, n, 7),
        noise_of(7 + 2**31, n, 40),
    ):
        counts = np.histogram2d(here, there, bins=12, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(counts.ravel()).pvalue > UNLIKELY
        assert abs(np.corrcoef(here, there)[0, 1]) < 0.03


def test_no_two_keys_share_their_noise() -> None:
    seeds, numbers = (0, 1, 2, 2**31, 2**32 - 1, 20_260_608), np.arange(40)
    samples, positions = np.meshgrid(numbers, numbers)
    values = np.concatenate([noise_of(s, samples, positions).ravel() for s in seeds])
    assert len(np.unique(values)) == len(seeds) * 1600


def test_noise_is_the_same_for_a_key_in_any_company() -> None:
    samples, positions = np.array([5, 1, 9]), np.array([3, 8, 3])
    together = noise_of(2, samples, positions)
    for i, (s, p) in enumerate(zip(samples, positions, strict=True)):
        assert noise_of(2, [s], [p])[0] == together[i]


def test_noise_never_changes() -> None:
    """Golden values: another generator would make every finished run another run."""
    golden = [0.13870941014555427, 0.814259011529328, 0.4566146521113079]
    keys = [(0, 0, 0), (1, 2, 3), (20_260_608, 511, 300)]
    assert [float(noise_of(s, [n], [p])[0]) for s, n, p in keys] == golden


# ------------------------------------------------------------------ through the engine
def test_the_engine_samples_the_models_distribution() -> None:
    """First and second tokens of many samples against the model's own probabilities."""
    model: Any = small_model("qwen3", 1, layers=1, vocabulary=7)
    prompt, count = [1, 5, 2, 6, 3, 3, 0, 4, 1], 6000
    engine = RolloutEngine(model, Schedule.dense(4), max_batch=count)
    batch = engine.generate([prompt], count, RolloutConfig(), max_new_tokens=2, seed=3)
    with torch.no_grad():
        first = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).numpy()
        tokens = torch.tensor([[*prompt, t] for t in range(7)])
        second = model(tokens).logits[:, -1].softmax(-1).numpy()
    drawn = batch.tokens_NT.numpy()
    expected = first * count
    common = expected > 5
    assert common.sum() > 3
    counts = np.bincount(drawn[:, 0], minlength=7)
    rest = [counts[~common].sum()], [expected[~common].sum() + 1e-9]
    found = np.concatenate([counts[common], rest[0]])
    wanted = np.concatenate([expected[common], rest[1]])
    assert stats.chisquare(found, wanted / wanted.sum() * count).pvalue > UNLIKELY
    joint = (first[:, None] * second).ravel() * count
    pairs = np.bincount(drawn[:, 0] * 7 + drawn[:, 1], minlength=49)
    common = joint > 5
    found = np.append(pairs[common], pairs[~common].sum())
    wanted = np.append(joint[common], joint[~common].sum() + 1e-9)
    assert stats.chisquare(found, wanted / wanted.sum() * count).pvalue > UNLIKELY


def test_seeds_and_sample_ids_make_other_answers_and_only_they() -> None:
    engine = RolloutEngine(small_model("qwen3", 2), Schedule.dense(4))
    prompts = [[1, 2, 3, 4, 5]]

    def answers(seed: int, first: int) -> list[list[int]]:
        ids = np.arange(first, first + 4)
        options: dict[str, Any] = {"max_new_tokens": 8, "seed": seed, "sample_ids": ids}
        return engine.generate(prompts, 4, RolloutConfig(), **options).answers()

    keys = list(itertools.product((0, 1), (0, 100)))
    got = [answers(*key) for key in keys]
    assert len({str(a) for a in got}) == 4
    assert [answers(*key) for key in keys] == got
