from __future__ import annotations

from typing import Any

import pytest

from sparrow_analysis.cost import ModelShape, known_models, load_shape
from sparrow_lab.errors import UserError

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(
    ("name", "body", "head", "total", "kv", "group"),
    [
        ("qwen3-1.7b", 1.409, 0.311, 1.721, 114_688, 2),
        ("qwen3-4b", 3.634, 0.389, 4.022, 147_456, 4),
        ("qwen3-8b", 6.946, 0.622, 8.191, 147_456, 4),
        ("qwen3-14b", 13.212, 0.778, 14.768, 163_840, 5),
    ],
)
def test_parameter_totals_of_qwen3(
    name: str, body: float, head: float, total: float, kv: int, group: int
) -> None:
    shape = load_shape(name)
    assert shape is not None
    assert round(shape.body_parameters / 1e9, 3) == body
    assert round(shape.head_parameters / 1e9, 3) == head
    assert round(shape.parameters / 1e9, 3) == total
    assert shape.kv_bytes_per_token() == kv and shape.group == group


def test_known_models_by_any_spelling() -> None:
    assert "qwen3-0.6b" in known_models()
    assert load_shape("Qwen/Qwen3-0.6B") == load_shape("qwen3-0.6b")
    assert load_shape("nobody/knows") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
        ("qwen3", {"tie_word_embeddings": False, "head_dim": 32, "attention_bias": True}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("llama", {"mlp_bias": True, "attention_bias": True}),
        ("mistral", {"sliding_window": 8}),
        ("gemma", {"head_dim": 32}),
        ("gemma2", {"head_dim": 32}),
        ("gemma3_text", {"head_dim": 32}),
    ],
)
def test_totals_equal_those_of_the_real_module(kind: str, options: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {k: v for k, v in LLAMA.items() if k != "model_type"}
    config = AutoConfig.for_model(kind, **{**sizes, "num_key_value_heads": 2, **options})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    shape = ModelShape.from_config(config.to_dict())
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert shape.head_dim == getattr(config, "head_dim", None) or 16


def test_defaults_of_a_missing_key() -> None:
    shape = ModelShape.from_config(LLAMA)
    assert shape.head_dim == 16 and shape.kv_heads == 4 and shape.group == 1 and not shape.tied
    assert ModelShape.from_config({**LLAMA, "model_type": "gemma"}).head_dim == 256
    assert ModelShape.from_config({**LLAMA, "model_type": "gemma"}).tied
    assert ModelShape.from_config({**LLAMA, "model_type": "qwen3"}).head_dim == 128
    assert ModelShape.from_config({"model_type": "gemma3", "text_config": LLAMA}).hidden == 64


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (None, None)),
        ({"sliding_window": 8}, (8, 8)),
        ({"sliding_window": 8, "model_type": "qwen2"}, (None, None)),
        ({"sliding_window": 8, "model_type": "qwen2", "use_sliding_window": True}, (8, 8)),
        ({"sliding_window": 8, "model_type": "gemma2"}, (8, None)),
        ({"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, (None, 8)),
        ({"sliding_window": None, "layer_types": ["full_attention"] * 2}, (None, None)),
    ],
)
def test_windows(change: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    assert ModelShape.from_config({**LLAMA, **change}).windows == expected


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hidden_size": None}, "the key 'hidden_size' is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number of at least 1, found '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 3}, "4 query heads do not share 3 KV heads evenly"),
        ({"num_local_experts": 8}, "mixture of experts"),
        ({"kv_lora_rank": 512}, "latent attention"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"sliding_window": 8, "layer_types": ["full_attention"]}, "1 layer_types for 2 layers"),
        ({"model_type": "gpt_neox"}, "ungated MLP of gpt_neox"),
    ],
)
def test_what_the_model_cannot_cost_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        ModelShape.from_config({**LLAMA, **change}, where="c.json")
    assert says in str(caught.value) and str(caught.value).startswith("c.json: ")


def test_config_files(tmp_path: Any) -> None:
    import json

    folder = tmp_path / "My-Llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_shape(str(folder)), load_shape(str(folder / "config.json"))
    assert by_folder == by_file and by_file is not None and by_file.name == "My-Llama"
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        load_shape(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(UserError, match="is one object"):
        load_shape(str(folder))
    with pytest.raises(UserError, match="cannot be read"):
        load_shape(str(tmp_path / "none.json"))
