"""What pages add to the promises of `test_engine.py`: preemption, sharing, no leak."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.rollout.paged.runner import step_shape
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import CONTEXT, small_model
from tests.rollout.test_engine import PLAIN, assert_same_samples, make_prompts

DENSE = Schedule.dense(4)
SPARSE = Schedule.fixed(12, 4, dense_layers=1)


def cache_of(engine: PagedEngine, pages: int) -> int:
    """Bytes of so many pages of the 2-layer float64 models, landmarks counted where kept."""
    tokens = 2 * 2 * 8 * 8 * (2 * 4)  # layers, heads, dim, bytes; keys and values of 4 tokens
    marks = 0 if engine.schedule.is_dense else 2 * 8 * 8
    return pages * (tokens + marks)


def with_pages(schedule: Schedule, pages: int, **options: Any) -> PagedEngine:
    """An engine whose cache holds so many pages of 4 tokens."""
    engine = PagedEngine(small_model("qwen3", 2), schedule, **options)
    engine.runner.memory = cache_of(engine, pages)
    return engine


# ------------------------------------------------------------------ preemption
@pytest.mark.parametrize("schedule", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("pages", [18, 23, 40])
def test_preempted_sequences_say_what_they_would_have_said(schedule: Schedule, pages: int) -> None:
    """Moved to host memory and back, prompts too: the same tokens and numbers in float64."""
    prompts, options = make_prompts([19, 4, 33, 17, 1]), {"max_new_tokens": 30, "seed": 4}
    stops: dict[str, Any] = {"stop_tokens": (2,), **options}
    whole = RolloutEngine(small_model("qwen3", 2), schedule).generate(prompts, 3, PLAIN, **stops)
    tight = with_pages(schedule, pages)
    batch = tight.generate(prompts, 3, PLAIN, **stops)
    assert tight.preemptions > 0
    assert tight.pages_held == 0
    assert_same_samples(batch, whole, [(s, s) for s in range(15)])


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = with_pages(DENSE, 10)
    with pytest.raises(UserError, match=r"33 tokens and 20 new ones need 14 pages of 4.* holds 10"):
        engine.generate(make_prompts([5, 33]), 2, PLAIN, max_new_tokens=20)
    # what was refused left nothing behind
    engine.generate(make_prompts([5, 20]), 2, PLAIN, max_new_tokens=10)
    assert engine.pages_held == 0


def test_after_a_thousand_requests_every_page_is_free() -> None:
    engine = with_pages(SPARSE, 30, max_batch=16)
    rng = np.random.default_rng(3)
    for _ in range(5):
        prompts = make_prompts(rng.integers(1, 24, 50).tolist(), seed=int(rng.integers(100)))
        batch = engine.generate(
            prompts, 4, PLAIN, max_new_tokens=int(rng.integers(1, 24)), stop_tokens=(0, 1, 2)
        )
        assert (batch.generated_N > 0).all()
        assert engine.pages_held == 0


# ------------------------------------------------------------------ sharing
def test_samples_of_a_prompt_hold_its_full_pages_once() -> None:
    """One prompt of 10 full pages and 8 samples: 80 pages, were they copied, do not fit 30."""
    engine = with_pages(DENSE, 30)
    (prompt,) = make_prompts([41])
    batch = engine.generate([prompt], 8, PLAIN, max_new_tokens=6)
    assert engine.preemptions == 0
    plain = RolloutEngine(small_model("qwen3", 2), DENSE)
    alone = plain.generate([prompt], 8, PLAIN, max_new_tokens=6)
    assert_same_samples(batch, alone, [(s, s) for s in range(8)])


# ------------------------------------------------------------------ the work asked for
def test_some_of_the_samples_are_those_of_the_whole() -> None:
    """What an interrupted rollout still has to do says what the whole would have said."""
    prompts, cap = make_prompts([9, 14, 3]), 7
    engine = PagedEngine(small_model("qwen3", 2), SPARSE)
    whole = engine.generate(prompts, 4, PLAIN, max_new_tokens=cap, seed=5)
    only = np.array([1, 2, 6, 11])
    part = engine.generate(prompts, 4, PLAIN, max_new_tokens=cap, seed=5, only=only)
    assert_same_samples(part, whole, [(s, s) for s in only.tolist()])
    left = np.setdiff1d(np.arange(12), only)
    assert not part.generated_N[left].any()
    assert not part.tokens_NT[left].any()


def test_a_sample_is_whole_in_the_batch_when_its_end_is_told() -> None:
    prompts, seen = make_prompts([9, 14, 3]), {}
    engine = PagedEngine(small_model("qwen3", 2), SPARSE, max_batch=3)

    def on_end(numbers: list[int], batch: RolloutBatch) -> None:
        for s in numbers:
            assert s not in seen
            n = int(batch.generated_N[s])
            fields = (batch.tokens_NT, batch.logp_NT, batch.raw_logp_NT, batch.attended_NT)
            seen[s] = [x[s, :n].tolist() for x in fields] + [bool(batch.finished_N[s])]

    options: dict[str, Any] = {"max_new_tokens": 9, "stop_tokens": (1, 2, 3)}
    batch = engine.generate(prompts, 2, PLAIN, on_end=on_end, **options)
    assert sorted(seen) == list(range(6))
    for s, (tokens, logp, raw, attended, finished) in seen.items():
        n = int(batch.generated_N[s])
        assert tokens == batch.tokens_NT[s, :n].tolist()
        assert logp == batch.logp_NT[s, :n].tolist()
        assert raw == batch.raw_logp_NT[s, :n].tolist()
        assert attended == batch.attended_NT[s, :n].tolist()
        assert finished == bool(batch.finished_N[s])


@pytest.mark.parametrize("schedule", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_prompts_read_in_chunks_are_the_prompts(schedule: Schedule, chunk: int) -> None:
    prompts = make_prompts([19, 4, 33, 40, 1])
    model = small_model("qwen3", 2)
    whole = RolloutEngine(model, schedule).generate(prompts, 2, PLAIN, max_new_tokens=8)
    chunked = PagedEngine(model, schedule, chunk=chunk)
    batch = chunked.generate(prompts, 2, PLAIN, max_new_tokens=8)
    assert_same_samples(batch, whole, [(s, s) for s in range(10)])


@pytest.mark.parametrize(
    "options", [{"top_k": 3}, {"top_p": 0.7, "temperature": 0.8}, {"min_p": 0.2}], ids=str
)
def test_narrowed_sampling_is_that_of_the_plain_engine(options: dict[str, Any]) -> None:
    prompts, rollout = make_prompts([19, 4, 33]), RolloutConfig(**options)
    model = small_model("qwen3", 2)
    ours = PagedEngine(model, SPARSE).generate(prompts, 2, rollout, max_new_tokens=9)
    plain = RolloutEngine(model, SPARSE).generate(prompts, 2, rollout, max_new_tokens=9)
    assert_same_samples(ours, plain, [(s, s) for s in range(6)])


def test_another_schedule_needs_no_other_engine() -> None:
    """From dense to sparse and back, in pages that stay."""
    model, prompts = small_model("qwen3", 2), make_prompts([30, 9])
    engine = PagedEngine(model, SPARSE)
    engine.runner.memory = cache_of(engine, 60)
    options: dict[str, Any] = {"max_new_tokens": 12, "seed": 2}
    wider = Schedule(4, (0, 36), (16, 20), dense_layers=1)
    for schedule in (SPARSE, DENSE, wider, SPARSE):
        engine.set_schedule(schedule)
        ours = engine.generate(prompts, 2, PLAIN, **options)
        plain = RolloutEngine(model, schedule).generate(prompts, 2, PLAIN, **options)
        assert_same_samples(ours, plain, [(s, s) for s in range(4)])


def test_a_rollout_that_was_broken_off_leaves_nothing_behind() -> None:
    """Steps may run over empty slots: what a broken rollout left in them must not come to life."""
    engine = with_pages(SPARSE, 200, max_batch=8)
    prompts, options = make_prompts([30, 9, 2, 17]), {"max_new_tokens": 14, "seed": 2}
    whole = engine.generate(prompts, 1, PLAIN, **options)  # type: ignore[arg-type]

    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts * 2, 1, PLAIN, max_new_tokens=9, stop_tokens=(3,), on_end=broken)
    seen = []
    step = engine.runner.step

    def watched(count: int, columns: int, truncates: bool) -> None:
        assert engine.runner.slots is not None
        seen.append((count, engine.runner.slots["length"].count_nonzero().item()))
        step(count, columns, truncates)

    engine.runner.step = watched  # type: ignore[method-assign]
    again = engine.generate(prompts, 1, PLAIN, **options)  # type: ignore[arg-type]
    assert_same_samples(again, whole, [(s, s) for s in range(4)])
    assert all(count == used for count, used in seen)
    assert engine.pages_held == 0


def test_an_engine_goes_when_nobody_holds_it() -> None:
    """Its cache is most of a GPU's memory: it must not wait for a search for cycles."""
    engine = PagedEngine(small_model("qwen3", 2), SPARSE)
    engine.generate(make_prompts([9, 4]), 2, PLAIN, max_new_tokens=4, on_end=lambda *_: None)
    gone = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert gone() is None
    finally:
        gc.enable()


# ------------------------------------------------------------------ the step by itself
@pytest.mark.parametrize("sparse", [False, True])
def test_empty_slots_and_columns_change_nothing(sparse: bool) -> None:
    """A graph's batch and table are as wide as they were captured, whatever is in use."""
    model = small_model("qwen3", 2)
    engine = PagedEngine(model, SPARSE if sparse else DENSE, max_batch=8)
    engine.runner.memory = cache_of(engine, 200)
    prompts, options = make_prompts([30, 9, 2]), {"max_new_tokens": 14, "seed": 2}
    whole = engine.generate(prompts, 1, PLAIN, **options)  # type: ignore[arg-type]

    def wide_step(count: int, columns: int, truncates: bool) -> None:
        columns = max(columns, CONTEXT // 4)
        engine.runner.run(step_shape(SPARSE if sparse else DENSE, 8, columns, truncates))

    engine.runner.step = wide_step  # type: ignore[method-assign]
    padded = engine.generate(prompts, 1, PLAIN, **options)  # type: ignore[arg-type]
    assert_same_samples(padded, whole, [(s, s) for s in range(3)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_engines_agree_in_low_precision(dtype: torch.dtype) -> None:
    """Forced along one answer, log-probabilities differ by rounding alone."""
    model = small_model("qwen3", 2, dtype=dtype)
    prompts, forced = make_prompts([30, 9]), make_prompts([12, 12], seed=9)
    options: dict[str, Any] = {"max_new_tokens": 12, "forced": forced}
    ours = PagedEngine(model, SPARSE).generate(prompts, 1, PLAIN, **options)
    plain = RolloutEngine(model, SPARSE).generate(prompts, 1, PLAIN, **options)
    gap = float((ours.raw_logp_NT - plain.raw_logp_NT).abs().max())
    assert gap < (1e-4 if dtype == torch.float32 else 0.5)
