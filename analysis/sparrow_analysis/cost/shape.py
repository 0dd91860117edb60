"""What the cost of a decoder depends on, read from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparrow_lab.errors import UserError

# Keys of designs whose cost follows other formulas; a wrong number would look like a right one.
_OTHER_DESIGNS = {
    "kv_lora_rank": "multi-head latent attention",
    "num_local_experts": "a mixture of experts",
    "num_experts": "a mixture of experts",
    "n_routed_experts": "a mixture of experts",
    "ssm_state_size": "a state-space model",
    "state_size": "a state-space model",
}
_HEAD_DIM = {"qwen3": 128, "gemma": 256, "gemma2": 256, "gemma3_text": 256}
_TIED = {"gemma", "gemma2", "gemma3_text"}
_QKV_BIAS = {"qwen2"}
_QK_NORM = {"qwen3", "gemma3_text"}
_FOUR_NORMS = {"gemma2", "gemma3_text"}
_ATTENTION = {"full_attention", "sliding_attention"}
_WINDOW_PATTERN = {"gemma2": 2, "gemma3_text": 6}
_PLAIN_MLP = {"falcon", "gpt2", "gpt_neox", "gptj", "nemotron", "opt", "phi", "starcoder2"}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder with grouped-query attention and a gated MLP.

    Attributes:
        windows: for each layer, the sliding window in tokens, or None for full attention.
        qkv_bias, out_bias, mlp_bias: which projections have biases.
        norms: normalisation vectors of `hidden` values a layer.
        qk_norm: whether queries and keys are normalised (two vectors of head_dim a layer).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norms: int = 2
    qk_norm: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def body_parameters(self) -> int:
        """All parameters but the embedding and the output head."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        projections = self.hidden * (q + 2 * kv) + q * self.hidden
        projections += (q + 2 * kv) * self.qkv_bias + self.hidden * self.out_bias
        mlp = 3 * self.hidden * self.intermediate
        mlp += (2 * self.intermediate + self.hidden) * self.mlp_bias
        norms = self.norms * self.hidden + 2 * self.head_dim * self.qk_norm
        return self.layers * (projections + mlp + norms) + self.hidden

    @property
    def head_parameters(self) -> int:
        """The output head, whether or not it shares its weights with the embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, shared ones once."""
        return self.body_parameters + self.head_parameters * (1 if self.tied else 2)

    def kv_bytes_per_token(self, element_bytes: float = 2) -> float:
        """Bytes of keys and values that one token adds over all layers."""
        return 2 * self.kv_heads * self.head_dim * self.layers * element_bytes

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], name: str = "", where: str = "config.json"
    ) -> ModelShape:
        """Read a Hugging Face config: Qwen2, Qwen3, Llama, Mistral, Gemma and other such decoders.

        A missing `head_dim` is the model type's own default, or hidden / heads; missing KV heads
        mean that every head has its own. A model that wraps a text model is read through its
        `text_config`.

        Raises:
            UserError: a size is missing or impossible, or the design has other formulas (mixture
                of experts, latent or linear attention).
        """
        if isinstance(config.get("text_config"), Mapping):
            config = config["text_config"]
        kind = str(config.get("model_type", ""))
        for key, design in _OTHER_DESIGNS.items():
            if config.get(key):
                raise UserError(f"the cost model does not cover {design} ('{key}')", where)
        if kind in _PLAIN_MLP:
            raise UserError(f"the cost model does not cover the ungated MLP of {kind}", where)
        for other in set(config.get("layer_types") or ()) - _ATTENTION:
            raise UserError(f"the cost model does not cover layers of {other}", where)
        layers = _size(config, "num_hidden_layers", where)
        hidden = _size(config, "hidden_size", where)
        heads = _size(config, "num_attention_heads", where)
        kv_heads = _size(config, "num_key_value_heads", where, heads)
        if heads % kv_heads:
            raise UserError(f"{heads} query heads do not share {kv_heads} KV heads evenly", where)
        bias = bool(config.get("attention_bias", False))
        return cls(
            name=name or str(config.get("_name_or_path") or kind),
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_size(config, "head_dim", where, _HEAD_DIM.get(kind, hidden // heads)),
            intermediate=_size(config, "intermediate_size", where),
            vocabulary=_size(config, "vocab_size", where),
            tied=bool(config.get("tie_word_embeddings", kind in _TIED)),
            windows=_windows(config, kind, layers, where),
            qkv_bias=bias or kind in _QKV_BIAS,
            out_bias=bias,
            mlp_bias=bool(config.get("mlp_bias", False)),
            norms=4 if kind in _FOUR_NORMS else 2,
            qk_norm=kind in _QK_NORM,
        )


def _size(config: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if value is None:
        raise UserError(f"the key '{key}' is missing", where)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{key} must be a whole number of at least 1, found {value!r}", where)
    return value


def _windows(
    config: Mapping[str, Any], kind: str, layers: int, where: str
) -> tuple[int | None, ...]:
    """The window of each layer: by `layer_types`, else by the model type's pattern, else one."""
    window = config.get("sliding_window")
    if not config.get("use_sliding_window", not kind.startswith("qwen")):
        window = None
    if window is None:
        return (None,) * layers
    window = _size(config, "sliding_window", where)
    types = config.get("layer_types")
    pattern = config.get("sliding_window_pattern") or _WINDOW_PATTERN.get(kind)
    if types is None and pattern is not None:
        types = ["full" if (i + 1) % pattern == 0 else "sliding" for i in range(layers)]
    if types is None:
        return (window,) * layers
    if len(types) != layers:
        raise UserError(f"{len(types)} layer_types for {layers} layers", where)
    return tuple(window if t.startswith("sliding") else None for t in types)
