"""Adapters beside the weights: what peft's own modules compute, prompt by prompt on or off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import FAMILIES, own_copy, small_model
from tests.rollout.test_engine import assert_same_samples, make_prompts

EVERY = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PLAIN = RolloutConfig()
DENSE, SPARSE = Schedule.dense(4), Schedule.fixed(12, 4, dense_layers=1)


def adapted(targets: list[str], family: str = "qwen3", seed: int = 0) -> Any:
    """A float64 model with adapters whose effect cannot be overlooked."""
    base = own_copy(small_model(family, 2))
    config = LoraConfig(r=3, lora_alpha=5, target_modules=targets, lora_dropout=0.0)
    model: Any = get_peft_model(base, config).double().eval()
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.copy_(0.3 * torch.randn(weight.shape, generator=noise, dtype=torch.float64))
    return model


def on_device_layers(engine: PagedEngine, model: Any) -> PagedEngine:
    engine.decoder = DeviceDecoder(model)
    engine.decoder.reserve_turns(engine.runner.context)
    engine.runner.decoder = engine.decoder
    return engine


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("targets", [EVERY, ["q_proj", "v_proj"], ["down_proj"]], ids=str)
@pytest.mark.parametrize("device_layers", [False, True])
def test_dense_log_probabilities_are_those_of_the_adapted_model(
    family: str, targets: list[str], device_layers: bool
) -> None:
    model, prompts = adapted(targets, family), make_prompts([19, 6])
    engine = PagedEngine(model, DENSE)
    if device_layers:
        engine = on_device_layers(engine, model)
    for on in (True, False):
        batch = engine.generate(prompts, 2, PLAIN, max_new_tokens=8, adapters=on)
        with model.disable_adapter() if not on else torch.no_grad():
            for s, answer in enumerate(batch.answers()):
                prompt = prompts[s // 2]
                logits = model(torch.tensor([[*prompt, *answer]])).logits[0]
                logp = logits.log_softmax(-1)[len(prompt) - 1 : -1].detach()
                told = logp.gather(1, torch.tensor(answer)[:, None]).squeeze(1)
                np.testing.assert_allclose(batch.raw_logp_NT[s], told, atol=1e-6, rtol=0)


@pytest.mark.parametrize("chunk", [8192, 5])
def test_prompts_with_and_without_go_together(chunk: int) -> None:
    model, prompts = adapted(EVERY), make_prompts([19, 6, 19, 11])
    choice = [True, False, False, True]
    options: dict[str, Any] = {"max_new_tokens": 9, "seed": 3}
    engine = PagedEngine(model, SPARSE, max_batch=3, chunk=chunk)
    mixed = engine.generate(prompts, 2, PLAIN, adapters=choice, **options)
    with_all = engine.generate(prompts, 2, PLAIN, adapters=True, **options)
    without = engine.generate(prompts, 2, PLAIN, adapters=False, **options)
    for p, on in enumerate(choice):
        pairs = [(2 * p, 2 * p), (2 * p + 1, 2 * p + 1)]
        assert_same_samples(mixed, with_all if on else without, pairs)
    assert not torch.equal(with_all.raw_logp_NT, without.raw_logp_NT)


def test_without_adapters_it_is_the_base_model() -> None:
    model, prompts = adapted(EVERY), make_prompts([19, 6])
    options: dict[str, Any] = {"max_new_tokens": 9, "seed": 3}
    ours = PagedEngine(model, SPARSE).generate(prompts, 2, PLAIN, adapters=False, **options)
    base = RolloutEngine(small_model("qwen3", 2), SPARSE).generate(prompts, 2, PLAIN, **options)
    assert_same_samples(ours, base, [(s, s) for s in range(4)])


@pytest.mark.parametrize("device_layers", [False, True])
def test_an_update_of_the_adapters_is_taken_over(device_layers: bool) -> None:
    model, prompts = adapted(EVERY), make_prompts([19, 6])
    engine = PagedEngine(model, SPARSE)
    if device_layers:
        engine = on_device_layers(engine, model)
    before = engine.generate(prompts, 1, PLAIN, max_new_tokens=6)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.mul_(-2)
    engine.refresh()
    after = engine.generate(prompts, 1, PLAIN, max_new_tokens=6)
    fresh = PagedEngine(model, SPARSE).generate(prompts, 1, PLAIN, max_new_tokens=6)
    assert_same_samples(after, fresh, [(0, 0), (1, 1)])
    assert not torch.equal(after.raw_logp_NT, before.raw_logp_NT)


def test_adapters_that_cannot_stand_beside_the_weights_are_refused() -> None:
    with pytest.raises(UserError, match=r"an adapter on '.*lm_head'"):
        PagedEngine(adapted(["q_proj", "lm_head"]), SPARSE)
    merged = adapted(["q_proj"])
    merged.merge_adapter()
    with pytest.raises(UserError, match="q_proj' is merged"):
        PagedEngine(merged, SPARSE)
    dora = get_peft_model(
        own_copy(small_model("qwen3", 2)), LoraConfig(target_modules=["q_proj"], use_dora=True)
    )
    with pytest.raises(UserError, match="DoRA"):
        PagedEngine(dora, SPARSE)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="paged engine"):
        RolloutEngine(adapted(["q_proj"]), SPARSE)


def test_one_answer_for_each_prompt() -> None:
    engine = PagedEngine(adapted(["q_proj"]), SPARSE)
    with pytest.raises(ValueError, match="adapters has 1 answers for 2 prompts"):
        engine.generate(make_prompts([5, 6]), 1, PLAIN, max_new_tokens=2, adapters=[True])
