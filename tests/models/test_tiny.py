"""The built-in tiny models: fixed by their seed, shipped whole, and neither blind nor perfect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sparrow_lab.config.schema import ModelConfig, RolloutConfig, TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.models.tiny import ASSETS, TINY, asset_folder, build_tiny, load_tiny
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.tasks import make_task
from sparrow_lab.tasks import symbols as sym
from sparrow_lab.train.trainer import judge

SHIPPED = sorted(p.parent.name for p in ASSETS.glob("*/model.safetensors"))


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_seed_fixes_every_weight(name: str) -> None:
    torch.manual_seed(1)
    first = build_tiny(name, 7)
    torch.manual_seed(2)
    again, other = build_tiny(name, 7), build_tiny(name, 8)
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not torch.equal(
        first.model.layers[0].mlp.up_proj.weight, other.model.layers[0].mlp.up_proj.weight
    )
    assert {p.dtype for p in first.parameters()} == {torch.float32}
    assert all(torch.isfinite(p).all() for p in first.parameters())


@pytest.mark.parametrize("name", sorted(TINY))
def test_shapes_are_those_of_the_table(name: str) -> None:
    model: Any = build_tiny(name, 0)
    shape, config = TINY[name], model.config
    assert (config.hidden_size, config.num_hidden_layers) == (shape.hidden, shape.layers)
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert config.vocab_size == len(sym.SYMBOLS)
    assert (config.eos_token_id, config.bos_token_id) == (sym.EOS, sym.BOS)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    task = make_task(TaskConfig.model_validate({"name": shape.task}))
    longest = max(len(p.tokens) for p in task.prompts("train", 0, 50))
    assert longest + task.max_new_tokens <= shape.context


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no tiny model 'tiny-ss'.*did you mean 'tiny-s'"):
        asset_folder("tiny-ss", 0)


def test_a_warm_start_that_is_not_shipped_names_those_that_are() -> None:
    with pytest.raises(UserError, match=r"tiny-m has no warm start 99; there are \[0") as caught:
        asset_folder("tiny-m", 99)
    assert caught.value.where == "model.warm_start"


def test_every_model_is_shipped_and_nothing_else() -> None:
    assert {name.rsplit("-", 1)[0] for name in SHIPPED} == set(TINY)


@pytest.mark.parametrize("asset", SHIPPED)
def test_shipped_weights_load_whole(asset: str) -> None:
    name, start = asset.rsplit("-", 1)
    model, tokenizer = load_model(ModelConfig(name=name, warm_start=int(start)))
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert len(tokenizer) == len(sym.SYMBOLS)
    assert tokenizer.convert_tokens_to_ids(list(sym.SYMBOLS)) == list(range(len(sym.SYMBOLS)))
    fresh = build_tiny(name, 0)
    shapes = {k: v.shape for k, v in fresh.named_parameters()}
    assert {k: v.shape for k, v in model.named_parameters()} == shapes
    recipe = json.loads((ASSETS / asset / "recipe.json").read_text())
    assert recipe["model"] == name and recipe["last"]["step"] == recipe["recipe"]["steps"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_precisions(dtype: str) -> None:
    model, _ = load_tiny("tiny-s", 0, dtype)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, dtype)}
    engine = RolloutEngine(model, Schedule.dense(8))
    prompt = make_task(TaskConfig()).prompts("evaluate", 0, 1)[0]
    batch = engine.generate([prompt.tokens], 2, RolloutConfig(), max_new_tokens=5)
    assert torch.isfinite(batch.raw_logp_NT).all()
    assert batch.raw_logp_NT.dtype == (torch.float64 if dtype == "float64" else torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("asset", SHIPPED)
def test_shipped_policies_leave_room_both_ways(asset: str) -> None:
    """Right often enough to learn from, wrong often enough to learn more."""
    name, start = asset.rsplit("-", 1)
    model, _ = load_tiny(name, int(start))
    task = make_task(TaskConfig.model_validate({"name": TINY[name].task}))
    prompts = task.prompts("evaluate", 0, 256)
    batch = RolloutEngine(model, Schedule.dense(8)).generate(
        [p.tokens for p in prompts],
        1,
        RolloutConfig(),
        max_new_tokens=task.max_new_tokens,
        stop_tokens=task.stop_tokens,
        keep_hidden=False,
    )
    right = sum(v.reward for v in judge(task, prompts, batch)) / len(prompts)
    assert 0.5 < right < 0.95
    assert float(batch.finished_N.double().mean()) > 0.9


def test_assets_hold_no_code_and_no_pickles() -> None:
    suffixes = {p.suffix for p in Path(ASSETS).rglob("*") if p.is_file()}
    assert suffixes == {".json", ".safetensors"}
