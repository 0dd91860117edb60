"""What the engine promises whatever its insides: dense is dense, and batching changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from sparrow_lab.config.schema import ReservedConfig, RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.engines import Make, both_engines
from tests.rollout.small_models import CONTEXT, FAMILIES, VOCABULARY, own_copy, small_model

pytestmark = both_engines

GREEDY = RolloutConfig(temperature=0.0)
PLAIN = RolloutConfig()
SPARSE = Schedule.fixed(12, 4, dense_layers=0)


def make_prompts(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, n).tolist() for n in lengths]


def rows(batch: RolloutBatch, s: int) -> list[list[float]]:
    """All that a batch says of one sample, without padding."""
    n = int(batch.generated_N[s])
    assert batch.hidden_NTM is not None
    parts: list[Tensor] = [batch.logp_NT, batch.raw_logp_NT, batch.attended_NT, batch.hidden_NTM]
    return [part[s, :n].double().reshape(-1).tolist() for part in parts]


def assert_same_samples(a: RolloutBatch, b: RolloutBatch, pairs: Sequence[tuple[int, int]]) -> None:
    answers_a, answers_b = a.answers(), b.answers()
    for i, j in pairs:
        assert answers_a[i] == answers_b[j]
        assert bool(a.finished_N[i]) == bool(b.finished_N[j])
        for x, y in zip(rows(a, i), rows(b, j), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-10, rtol=0)


# ------------------------------------------------------------------ dense is what it says
@pytest.mark.parametrize("family", FAMILIES)
def test_dense_greedy_tokens_are_those_of_generate(make: Make, family: str) -> None:
    model: Any = small_model(family, 2, dtype=torch.float32)
    prompts = make_prompts([1, 3, 17, 40])
    fixed = GenerationConfig(do_sample=False, max_new_tokens=24, pad_token_id=0)
    engine = make(model, Schedule.dense(4))
    batch = engine.generate(prompts, 1, GREEDY, max_new_tokens=24)
    for prompt, ours in zip(prompts, batch.answers(), strict=True):
        tokens = torch.tensor([prompt])
        mask = torch.ones_like(tokens)
        theirs = model.generate(tokens, attention_mask=mask, generation_config=fixed)
        assert ours == theirs[0, len(prompt) :].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("lengths", [[9, 2, 30], [30, 30]], ids=str)
def test_a_budget_of_all_pages_is_dense_to_the_bit(
    make: Make, dtype: torch.dtype, page_size: int, lengths: list[int]
) -> None:
    model = small_model("qwen3", 2, dtype=dtype)
    prompts, cap = make_prompts(lengths), 12
    whole = -(-(30 + cap) // page_size) * page_size
    enough = Schedule.fixed(max(whole, 3 * page_size), page_size, dense_layers=0)
    got = {}
    for schedule in (Schedule.dense(page_size), enough):
        engine = make(model, schedule)
        got[schedule.name] = engine.generate(prompts, 2, PLAIN, max_new_tokens=cap, seed=1)
    dense, sparse = got.values()
    for name in ("tokens_NT", "logp_NT", "raw_logp_NT", "hidden_NTM", "attended_NT"):
        assert torch.equal(getattr(dense, name), getattr(sparse, name)), name


@pytest.mark.parametrize("dense_layers", [2, 5])
def test_a_schedule_that_leaves_no_layer_sparse_is_refused(make: Make, dense_layers: int) -> None:
    """It would report fewer attended tokens than were read, and full acceptance at any tau."""
    model = small_model("qwen3", 2, layers=2)
    with pytest.raises(UserError, match=f"{dense_layers} dense layers leave none of the model's 2"):
        make(model, Schedule.fixed(12, 4, dense_layers=dense_layers))
    engine = make(model, Schedule.dense(4, dense_layers=dense_layers))
    with pytest.raises(UserError, match="leave none"):
        engine.set_schedule(Schedule.fixed(12, 4, dense_layers=dense_layers))


def test_fp32_alone_and_in_a_padded_batch_agree_tightly(make: Make) -> None:
    model = small_model("qwen3", 2, dtype=torch.float32)
    prompts = make_prompts([5, 60, 31])
    engine = make(model, SPARSE)
    together = engine.generate(prompts, 1, PLAIN, max_new_tokens=10)
    for i, prompt in enumerate(prompts):
        ids = np.array([i])
        alone = engine.generate([prompt], 1, PLAIN, max_new_tokens=10, sample_ids=ids)
        assert alone.tokens_NT[0].tolist() == together.tokens_NT[i].tolist()
        gap = (alone.raw_logp_NT[0] - together.raw_logp_NT[i]).abs().max()
        assert float(gap) < 1e-4


def test_a_rollout_leaves_the_model_as_it_was(make: Make) -> None:
    """Weights, attention setting and a causal training forward (transformers #48296)."""
    model: Any = own_copy(small_model("qwen3", 2))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    setting = model.config._attn_implementation
    tokens = torch.tensor(make_prompts([20]))
    with torch.no_grad():
        logits = model(tokens).logits
    first = make(model, SPARSE).generate(make_prompts([20, 3]), 2, PLAIN, max_new_tokens=5)
    again = make(model, SPARSE).generate(make_prompts([20, 3]), 2, PLAIN, max_new_tokens=5)
    assert first.answers() == again.answers()
    assert model.config._attn_implementation == setting
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, logits)
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % VOCABULARY
        assert torch.equal(model(changed).logits[0, :-1], logits[0, :-1])


def test_refresh_takes_over_an_update(make: Make) -> None:
    model: Any = own_copy(small_model("qwen2", 2))
    engine = make(model, SPARSE)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.7)
    engine.refresh()
    prompts = make_prompts([21, 8])
    ours = engine.generate(prompts, 1, PLAIN, max_new_tokens=6)
    fresh = make(model, SPARSE).generate(prompts, 1, PLAIN, max_new_tokens=6)
    assert torch.equal(ours.raw_logp_NT, fresh.raw_logp_NT)
    stale = make(small_model("qwen2", 2), SPARSE)
    assert not torch.equal(
        stale.generate(prompts, 1, PLAIN, max_new_tokens=6).raw_logp_NT, ours.raw_logp_NT
    )


# ------------------------------------------------------------------ batching changes nothing
@pytest.mark.parametrize("schedule", [Schedule.dense(4), SPARSE], ids=["dense", "sparse"])
def test_a_sample_is_the_same_alone_in_any_batch_and_in_any_order(
    make: Make, schedule: Schedule
) -> None:
    model = small_model("qwen3", 2)
    prompts = make_prompts([19, 4, 33, 1, 8])
    stops, cap = (2, 7), 14
    engine = make(model, schedule)
    options: dict[str, Any] = {"max_new_tokens": cap, "stop_tokens": stops, "seed": 4}
    whole = engine.generate(prompts, 2, PLAIN, **options)
    assert len(set(whole.generated_N.tolist())) > 2, "samples must end at different times"
    for i in range(5):
        ids = np.array([2 * i, 2 * i + 1])
        alone = engine.generate([prompts[i]], 2, PLAIN, sample_ids=ids, **options)
        assert_same_samples(alone, whole, [(0, 2 * i), (1, 2 * i + 1)])
    order = [3, 0, 4, 2, 1]
    ids = np.array([2 * p + j for p in order for j in (0, 1)])
    mixed = engine.generate([prompts[p] for p in order], 2, PLAIN, sample_ids=ids, **options)
    assert_same_samples(mixed, whole, list(enumerate(ids.tolist())))
    for max_batch in (1, 2, 3, 7):
        small = make(model, schedule, max_batch)
        assert_same_samples(
            small.generate(prompts, 2, PLAIN, **options), whole, [(s, s) for s in range(10)]
        )
        assert small.pages_held == 0


def test_samples_of_a_prompt_equal_the_prompt_repeated(make: Make) -> None:
    engine = make(small_model("llama", 2), SPARSE)
    prompts = make_prompts([18, 16])
    shared = engine.generate(prompts, 3, PLAIN, max_new_tokens=9, seed=2)
    repeated = engine.generate(
        [p for p in prompts for _ in range(3)], 1, PLAIN, max_new_tokens=9, seed=2
    )
    assert_same_samples(shared, repeated, [(s, s) for s in range(6)])
    assert shared.prompt_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert len({tuple(a) for a in shared.answers()[:3]}) == 3


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("max_batch", [1, 4])
def test_long_samples_of_many_prompts_left_together_find_pages(
    make: Make, page_size: int, max_batch: int
) -> None:
    """Every prompt's second sample is short, so rows fill with the long ones of other prompts."""
    prompts = make_prompts([40] * 7)
    forced = [answer for _ in prompts for answer in ([3] * 16, [3])]
    schedule = Schedule.dense(page_size)
    engine = make(small_model("llama", 1), schedule, max_batch)
    batch = engine.generate(prompts, 2, PLAIN, max_new_tokens=16, forced=forced)
    assert batch.generated_N.tolist() == [16, 1] * 7
    assert engine.pages_held == 0


def test_no_page_is_kept_after_any_end(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE, max_batch=3)
    for stops in ((), (0, 1, 2, 3, 4), tuple(range(VOCABULARY))):
        for cap in (1, 2, 9):
            engine.generate(
                make_prompts([4, 13, 1]), 4, PLAIN, max_new_tokens=cap, stop_tokens=stops
            )
            assert engine.pages_held == 0


# ------------------------------------------------------------------ forced tokens
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_forced_tokens_have_the_log_probabilities_of_sampling_them(
    make: Make, temperature: float
) -> None:
    rollout = RolloutConfig(temperature=temperature)
    engine = make(small_model("qwen3", 2), SPARSE, max_batch=4)
    prompts = make_prompts([15, 6, 20])
    options: dict[str, Any] = {"max_new_tokens": 11, "stop_tokens": (1, 2), "seed": 8}
    drawn = engine.generate(prompts, 2, rollout, **options)
    fed = engine.generate(prompts, 2, rollout, forced=drawn.answers(), **options)
    assert_same_samples(fed, drawn, [(s, s) for s in range(6)])


def test_forced_tokens_report_the_policy_not_the_truncated_distribution(make: Make) -> None:
    narrow = RolloutConfig(top_k=3)
    engine = make(small_model("qwen3", 2), SPARSE)
    prompts = make_prompts([15])
    drawn = engine.generate(prompts, 2, narrow, max_new_tokens=6)
    fed = engine.generate(prompts, 2, narrow, max_new_tokens=6, forced=drawn.answers())
    assert torch.equal(fed.logp_NT, fed.raw_logp_NT)
    np.testing.assert_allclose(fed.raw_logp_NT.numpy(), drawn.raw_logp_NT.numpy(), atol=1e-10)


def test_forced_answers_of_any_length_are_fed_whole(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    answers = [[3, 1, 4], [1], [5, 9, 2, 6, 5]]
    prompts = make_prompts([7, 7, 7])
    batch = engine.generate(prompts, 1, PLAIN, max_new_tokens=2, stop_tokens=(1,), forced=answers)
    assert batch.answers() == answers
    assert batch.finished_N.tolist() == [False, True, False]


@pytest.mark.parametrize("forced", [[], [[1]], [[1], []], [[1], [2], [3]]])
def test_forced_answers_that_do_not_fit_are_refused(make: Make, forced: list[list[int]]) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    with pytest.raises(ValueError, match="forced"):
        engine.generate(make_prompts([7, 7]), 1, PLAIN, max_new_tokens=2, forced=forced)


# ------------------------------------------------------------------ ends, and what is counted
def test_stop_tokens_belong_to_the_answer_and_end_it(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    stops = (3, 4, 5)
    batch = engine.generate(
        make_prompts([9] * 12), 1, PLAIN, max_new_tokens=8, stop_tokens=stops, seed=6
    )
    assert 0 < int(batch.finished_N.sum()) < 12
    for answer, finished in zip(batch.answers(), batch.finished_N.tolist(), strict=True):
        assert not set(answer[:-1]) & set(stops)
        assert finished == (answer[-1] in stops)
        assert finished or len(answer) == 8


def test_without_stop_tokens_every_sample_runs_to_the_cap(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    batch = engine.generate(make_prompts([9, 2]), 3, PLAIN, max_new_tokens=5)
    assert batch.generated_N.tolist() == [5] * 6
    assert not batch.finished_N.any()


def test_a_stop_token_at_the_cap_counts_as_finished(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    everything = tuple(range(VOCABULARY))
    batch = engine.generate(make_prompts([9]), 2, PLAIN, max_new_tokens=1, stop_tokens=everything)
    assert batch.finished_N.all()


def test_the_first_token_comes_from_the_dense_prefill_and_is_not_counted(make: Make) -> None:
    model = small_model("qwen3", 2)
    prompts = make_prompts([30, 5])
    got = {}
    for schedule in (Schedule.dense(4), SPARSE):
        engine = make(model, schedule)
        got[schedule.name] = engine.generate(
            prompts, 2, PLAIN, max_new_tokens=6, stop_tokens=(3,), seed=3
        )
    dense, sparse = got.values()
    assert torch.equal(dense.raw_logp_NT[:, 0], sparse.raw_logp_NT[:, 0])
    for batch in (dense, sparse):
        assert not batch.counted_NT[:, 0].any()
        assert torch.equal(batch.counted_NT[:, 1:], batch.valid_NT[:, 1:])
        assert (batch.attended_NT[:, 0] == 0).all()
        assert batch.valid_NT.sum(dim=1).tolist() == batch.generated_N.tolist()
    assert sparse.length_NT[0].tolist() == [30, 31, 32, 33, 34, 35]
    whole = dense.attended_NT[dense.counted_NT]
    assert torch.equal(whole, dense.length_NT[dense.counted_NT])


def test_prompt_and_answer_may_fill_the_context_and_not_pass_it(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    (prompt,) = make_prompts([CONTEXT - 4])
    batch = engine.generate([prompt], 1, PLAIN, max_new_tokens=4)
    assert int(batch.generated_N[0]) == 4
    with pytest.raises(UserError, match=f"take {CONTEXT + 1} tokens.*context is {CONTEXT}"):
        engine.generate([[1], prompt], 1, PLAIN, max_new_tokens=5)
    with pytest.raises(UserError, match="context"):
        engine.generate([prompt], 1, PLAIN, max_new_tokens=1, forced=[[1] * 5])


@pytest.mark.parametrize("prompts", [[], [[]], [[1], []]])
def test_no_prompt_and_an_empty_prompt_are_refused(make: Make, prompts: list[list[int]]) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    with pytest.raises(UserError, match="at least one"):
        engine.generate(prompts, 1, PLAIN, max_new_tokens=4)


def test_hidden_states_are_kept_only_when_asked_for(make: Make) -> None:
    engine = make(small_model("qwen3", 2), SPARSE)
    prompts = make_prompts([9])
    bare = engine.generate(prompts, 1, PLAIN, max_new_tokens=4, keep_hidden=False)
    kept = engine.generate(prompts, 1, PLAIN, max_new_tokens=4)
    assert bare.hidden_NTM is None and kept.hidden_NTM is not None
    assert torch.equal(bare.raw_logp_NT, kept.raw_logp_NT)
    head: Any = small_model("qwen3", 2).get_output_embeddings()
    logp = (kept.hidden_NTM @ head.weight.T).log_softmax(-1)
    picked = logp.gather(2, kept.tokens_NT[..., None]).squeeze(-1)
    np.testing.assert_allclose(picked.detach().numpy(), kept.raw_logp_NT.numpy(), atol=1e-10)


def test_progress_rises_to_the_number_of_samples(make: Make) -> None:
    seen: list[tuple[int, int]] = []
    engine = make(small_model("qwen3", 2), SPARSE, max_batch=2)
    for stops in ((), (1, 2, 3), tuple(range(VOCABULARY))):
        seen.clear()
        engine.generate(
            make_prompts([9, 4]),
            2,
            PLAIN,
            max_new_tokens=5,
            stop_tokens=stops,
            progress=lambda done, total: seen.append((done, total)),
        )
        done = [d for d, _ in seen]
        assert done == sorted(done) and done[-1] == 4
        assert {total for _, total in seen} == {4}


def test_a_reserved_size_in_tokens_keeps_the_same_text_at_every_page_size(make: Make) -> None:
    reserved = ReservedConfig(first_tokens=4, last_tokens=5)
    model = small_model("qwen3", 2)
    for size, pages in ((1, (4, 5)), (2, (2, 3)), (4, (1, 2)), (8, (1, 2))):
        schedule = Schedule.fixed(64, size, dense_layers=1, reserved=reserved)
        assert schedule.reserved_pages() == pages
        make(model, schedule).generate(make_prompts([20]), 1, PLAIN, max_new_tokens=2)


# ------------------------------------------------------------------ what is refused
def test_another_architecture_is_refused_by_name(make: Make) -> None:
    config = GPT2Config(vocab_size=16, n_positions=32, n_embd=8, n_layer=1, n_head=2)
    with pytest.raises(UserError, match=r"'gpt2' cannot be rolled out; known: qwen3, qwen2, llama"):
        make(GPT2LMHeadModel(config), SPARSE)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"mlp_bias": True}, "biases in its MLP"),
        ({"attention_bias": True}, "bias in the attention's output"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "'dynamic' depends on the length",
        ),
    ],
)
def test_an_option_that_the_layers_do_not_have_is_refused(
    make: Make, options: dict[str, Any], what: str
) -> None:
    base: dict[str, Any] = {
        "vocab_size": 16,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
    }
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(**base, **heads, **options))
    with pytest.raises(UserError, match=what):
        make(model, SPARSE)


def test_sliding_layers_are_refused(make: Make) -> None:
    config = Qwen2Config(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    )
    with pytest.raises(UserError, match="sliding_attention"):
        make(Qwen2ForCausalLM(config), SPARSE)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_scaled_rotary_tables_are_the_models_own(make: Make, kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0}
    if kind != "linear":
        rope["original_max_position_embeddings"] = 32
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        rope_parameters=rope,
        initializer_range=0.3,
    )
    model: Any = LlamaForCausalLM(config).eval()
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6] * 6]
    batch = make(model, Schedule.dense(4)).generate(prompts, 1, GREEDY, max_new_tokens=8)
    with torch.no_grad():
        tokens = torch.tensor([[*prompts[0], *batch.answers()[0]]])
        theirs = model.model(tokens).last_hidden_state[0, 47:55]
    assert batch.hidden_NTM is not None
    torch.testing.assert_close(batch.hidden_NTM[0], theirs, atol=2e-4, rtol=1e-4)
