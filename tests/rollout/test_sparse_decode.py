"""The engine against the plain reference, token by token, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.config.schema import ReservedConfig, RolloutConfig
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.sampling import uniform_noise
from sparrow_lab.sparsity.schedule import DENSE, Schedule
from tests.rollout.engines import Make, both_engines
from tests.rollout.reference import Reference, Rules, Told, pages_of_tokens
from tests.rollout.small_models import FAMILIES, VOCABULARY, small_model

CLOSE = 1e-10
SEED = 11


def make_prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


def rules_of(schedule: Schedule) -> Rules:
    """The same settings for the reference; reserved pages are worked out on its side."""
    r = schedule.reserved
    pages = (r.first_pages, r.last_pages)
    if r.first_tokens is not None:
        pages = pages_of_tokens(r.first_tokens, r.last_tokens or 1, schedule.page_size)
    return Rules(
        schedule.page_size,
        int(pages[0] or 0),
        int(pages[1] or 0),
        tuple(zip(schedule.edges, schedule.budgets, strict=True)),
        schedule.landmark,
        schedule.score,
        schedule.dense_layers,
    )


def check_against_reference(
    make: Make,
    model: Any,
    schedule: Schedule,
    prompts: list[list[int]],
    *,
    samples: int = 1,
    cap: int = 10,
    stops: tuple[int, ...] = (),
    temperature: float = 1.0,
    max_batch: int = 256,
) -> int:
    """Compare every number of a rollout; returns how many pages the reference left out."""
    rollout = RolloutConfig(temperature=temperature)
    engine = make(model, schedule, max_batch)
    batch = engine.generate(
        prompts, samples, rollout, max_new_tokens=cap, stop_tokens=stops, seed=SEED
    )
    reference, rules, skipped = Reference(model), rules_of(schedule), 0
    for s in range(len(prompts) * samples):

        def noise(position: int, s: int = s) -> float:
            return float(uniform_noise(SEED, np.array([s]), np.array([position]))[0])

        told = reference.generate(
            prompts[s // samples],
            rules,
            cap=cap,
            stops=stops,
            noise=noise if temperature > 0 else None,
            temperature=temperature or 1.0,
        )
        same_as_told(batch, s, told, stops)
        skipped += told.skipped
    assert engine.pages_held == 0
    return skipped


def same_as_told(batch: RolloutBatch, s: int, told: Told, stops: tuple[int, ...]) -> None:
    n = len(told.tokens)
    assert int(batch.generated_N[s]) == n
    assert batch.tokens_NT[s, :n].tolist() == told.tokens
    assert not batch.tokens_NT[s, n:].any()
    assert bool(batch.finished_N[s]) == (told.tokens[-1] in stops)
    np.testing.assert_allclose(batch.raw_logp_NT[s, :n].numpy(), told.logp, atol=CLOSE, rtol=0)
    assert batch.hidden_NTM is not None
    hidden = batch.hidden_NTM[s, :n].numpy()
    np.testing.assert_allclose(hidden, np.stack(told.hidden), atol=CLOSE, rtol=0)
    assert batch.attended_NT[s, :n].tolist() == told.attended


def test_the_reference_is_the_model_that_transformers_runs() -> None:
    """Dense reference against transformers' own forward, so that it deserves to be one."""
    (prompt,) = make_prompts([30])
    for family in FAMILIES:
        model: Any = small_model(family, 2)
        with torch.no_grad():
            theirs = model.model(torch.tensor([prompt])).last_hidden_state[0, 19:29].numpy()
        dense = Rules(4, 0, 1, ((0, DENSE),))
        told = Reference(model).generate(prompt[:20], dense, cap=10, given=prompt[20:])
        np.testing.assert_allclose(np.stack(told.hidden), theirs, atol=CLOSE, rtol=0)


@both_engines
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("group", [1, 2, 5])
def test_architectures_and_groups(make: Make, family: str, group: int) -> None:
    schedule = Schedule(4, (0, 30), (16, 20), dense_layers=1)
    model = small_model(family, group)
    assert check_against_reference(make, model, schedule, make_prompts([33, 2, 21])) > 0


@both_engines
@pytest.mark.parametrize("landmark", ["mean", "minmax"])
@pytest.mark.parametrize("score", ["group_mean", "softmax_max"])
@pytest.mark.parametrize("dense_layers", [0, 1, 2])
def test_landmarks_scores_and_dense_layers(
    make: Make, landmark: Any, score: Any, dense_layers: int
) -> None:
    schedule = Schedule.fixed(16, 4, landmark=landmark, score=score, dense_layers=dense_layers)
    model = small_model("qwen3", 2, layers=3)
    assert check_against_reference(make, model, schedule, make_prompts([29, 3, 40], seed=1)) > 0


@both_engines
@pytest.mark.parametrize("page_size", [1, 3, 4, 8, 16])
def test_page_sizes(make: Make, page_size: int) -> None:
    reserved = ReservedConfig(first_tokens=2, last_tokens=5)
    least = sum(pages_of_tokens(2, 5, page_size)) * page_size
    schedule = Schedule.fixed(least + page_size, page_size, dense_layers=0, reserved=reserved)
    prompts = make_prompts([5 * page_size + 2, 1, 6 * page_size], seed=2)
    assert check_against_reference(make, small_model("llama", 2), schedule, prompts, cap=9) > 0


@both_engines
def test_a_sequence_grows_from_dense_through_the_steps(make: Make) -> None:
    """A prompt of one token; the budget is passed and raised while it is decoded."""
    schedule = Schedule(3, (0, 12, 20), (9, 12, 18), dense_layers=0)
    prompts = make_prompts([1, 2, 3], seed=3)
    assert check_against_reference(make, small_model(), schedule, prompts, cap=33) > 0


@both_engines
def test_samples_of_a_prompt_that_ends_within_a_page(make: Make) -> None:
    """Samples share full pages and write on in copies of the partial one."""
    schedule = Schedule.fixed(12, 4, dense_layers=0)
    prompts = make_prompts([18, 16, 3], seed=4)
    assert check_against_reference(make, small_model(), schedule, prompts, samples=3, cap=7) > 0


@both_engines
@pytest.mark.parametrize("landmark", ["mean", "minmax"])
@pytest.mark.parametrize("score", ["group_mean", "softmax_max"])
@pytest.mark.parametrize(("length", "samples"), [(18, 1), (18, 3), (16, 3), (3, 3)])
def test_sequences_of_one_length(
    make: Make, landmark: Any, score: Any, length: int, samples: int
) -> None:
    """Started together they need no mask, with a shared prompt or without."""
    steps: dict[str, Any] = {"landmark": landmark, "score": score, "dense_layers": 1}
    schedule = Schedule(4, (0, 22), (12, 16), **steps)
    prompts = make_prompts([length] * 2, seed=6)
    model = small_model("qwen3", 5)
    skipped = check_against_reference(make, model, schedule, prompts, samples=samples, cap=12)
    assert skipped > 0


@both_engines
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("max_batch", [2, 99])
def test_answers_longer_than_anything_that_is_done_in_blocks(
    make: Make, samples: int, max_batch: int
) -> None:
    """Noise, rotations and results may be handled many steps at a time."""
    schedule = Schedule(8, (0, 70), (24, 40), dense_layers=1)
    prompts = make_prompts([60, 60, 9], seed=8)
    options: dict[str, Any] = {"samples": samples, "max_batch": max_batch, "stops": (4,)}
    model = small_model("llama", 1)
    assert check_against_reference(make, model, schedule, prompts, cap=150, **options) > 0


@both_engines
@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.7])
def test_temperatures_and_stop_tokens_under_continuous_batching(
    make: Make, temperature: float
) -> None:
    schedule = Schedule.fixed(12, 4, dense_layers=1)
    options = {"samples": 2, "stops": (1, 5, 9), "cap": 12, "max_batch": 3}
    prompts = make_prompts([20, 5, 31], seed=5)
    model = small_model("qwen2", 2)
    skipped = check_against_reference(
        make, model, schedule, prompts, temperature=temperature, **options
    )  # type: ignore[arg-type]
    assert skipped > 0


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule over short lengths, reserved pages stated either way."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    if draw(st.booleans()):
        first, last = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        reserved = ReservedConfig(first_pages=first, last_pages=last)
    else:
        tokens = draw(st.integers(0, 9)), draw(st.integers(1, 9))
        reserved = ReservedConfig(first_tokens=tokens[0], last_tokens=tokens[1])
        first, last = pages_of_tokens(*tokens, size)
    edges = [0, *sorted(draw(st.sets(st.integers(1, 60), max_size=3)))]
    extra = draw(st.lists(st.integers(0, 4), min_size=len(edges), max_size=len(edges)))
    budgets = [(first + last + n) * size for n in sorted(extra)]
    return Schedule(
        size,
        tuple(edges),
        tuple(budgets),
        landmark=draw(st.sampled_from(["mean", "minmax"])),
        score=draw(st.sampled_from(["group_mean", "softmax_max"])),
        dense_layers=draw(st.integers(0, 1)),
        reserved=reserved,
    )


@both_engines
@settings(max_examples=20)
@given(
    schedule=schedules(),
    family=st.sampled_from(FAMILIES),
    group=st.sampled_from([1, 2, 5]),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=3)
    | st.integers(1, 50).map(lambda n: [n, n]),
    stops=st.sampled_from([(), (2, 7, 13)]),
    samples=st.integers(1, 2),
    cap=st.integers(1, 12),
    max_batch=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_any_shape(
    make: Make,
    schedule: Schedule,
    family: str,
    group: int,
    lengths: list[int],
    stops: tuple[int, ...],
    samples: int,
    cap: int,
    max_batch: int,
    seed: int,
) -> None:
    prompts = make_prompts(lengths, seed)
    options: dict[str, Any] = {"samples": samples, "cap": cap, "max_batch": max_batch}
    options["stops"] = stops
    skipped = check_against_reference(
        make, small_model(family, group), schedule, prompts, **options
    )
    longest = max(lengths) + cap - 1  # the last token is never fed
    if cap == 1 or all(
        schedule.pages_at(n) == math.ceil(n / schedule.page_size) for n in range(1, longest + 1)
    ):
        assert skipped == 0
