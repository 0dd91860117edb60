"""Random decoders of a few thousand weights, with attention sharp enough that pages matter."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 23
CONTEXT = 256
HEAD_DIM = 8

_FAMILIES: dict[str, tuple[Any, Any]] = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}
FAMILIES = tuple(_FAMILIES)


@lru_cache(maxsize=64)
def small_model(
    family: str = "qwen3",
    group: int = 2,
    *,
    layers: int = 2,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    vocabulary: int = VOCABULARY,
    tied: bool = False,
) -> PreTrainedModel:
    """A model of 2 KV heads with `group` query heads each; shared between tests, so never train it.

    Qwen2 carries biases; head norms of Qwen3 and every other norm differ from 1.
    """
    config_class, model_class = _FAMILIES[family]
    # Qwen2 derives the head dim from the width; the others state one that differs from it
    hidden = HEAD_DIM * 2 * group if family == "qwen2" else max(16, 4 * group)
    settings: dict[str, Any] = {} if family == "qwen2" else {"head_dim": HEAD_DIM}
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=24,
        num_hidden_layers=layers,
        num_attention_heads=2 * group,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000.0},
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
        **settings,
    )
    model: PreTrainedModel = model_class(config).to(dtype).eval()
    noise = torch.Generator().manual_seed(seed)

    def normal(weight: torch.Tensor) -> torch.Tensor:
        return torch.randn(weight.shape, generator=noise, dtype=torch.float64).to(dtype)

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.copy_(1.5 + 0.3 * normal(weight))
            elif weight.dim() == 1:
                weight.copy_(0.4 * normal(weight) + (0.0 if "bias" in name else 1.0))
            elif "embed_tokens" in name or "lm_head" in name:
                weight.copy_(0.5 * normal(weight))
            else:
                gain = 1.8 if name.endswith(("q_proj.weight", "k_proj.weight")) else 1.0
                weight.copy_(gain * weight.shape[1] ** -0.5 * normal(weight))
    if dtype == torch.float64:
        _widen_norms(model)
    return model


def _widen_norms(model: PreTrainedModel) -> None:
    """Let norms compute in float64: transformers' own round to float32 on the way."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__.endswith("RMSNorm"):
            module.__class__ = type(kind.__name__, (kind,), {"forward": _wide_norm})


def _wide_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    out: torch.Tensor = self.weight * scaled
    return out


def own_copy(model: PreTrainedModel) -> PreTrainedModel:
    """A copy that a test may train."""
    return copy.deepcopy(model)
