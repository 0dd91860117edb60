"""Which architectures can be rolled out: a rule over `config.json`, without torch."""

from __future__ import annotations

from typing import Any

from sparrow_lab.errors import UserError

FAMILIES = ("qwen3", "qwen2", "llama")
"""`model_type` of the architectures whose layers the rollout engine knows."""


def check_supported(config: Any) -> None:
    """Refuse, by name, an architecture or an option that the layer loop does not implement.

    Args:
        config: a configuration of transformers, or an object with the fields of `config.json`.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise UserError(f"architecture '{kind}' cannot be rolled out; known: {', '.join(FAMILIES)}")
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        raise UserError(f"'{kind}' with {sorted(layers - {'full_attention'})} layers is unknown")
    act = getattr(config, "hidden_act", "silu")
    if act != "silu":
        raise UserError(f"activation '{act}' is unknown; silu is")
    if getattr(config, "mlp_bias", False):
        raise UserError(f"'{kind}' with biases in its MLP is unknown")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    turn = rope.get("rope_type", rope.get("type", "default"))
    if turn in ("dynamic", "longrope"):
        raise UserError(f"rotary type '{turn}' depends on the length: unknown")
