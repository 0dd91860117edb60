"""Models of the paper's sizes, with random weights: their shape is all that a timing needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sparrow_lab.errors import UserError, nearest
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Shape(NamedTuple):
    """A Qwen3 decoder; head dim 128, 8 KV heads and 151,936 tokens where not stated."""

    layers: int
    hidden: int
    heads: int
    inner: int
    tied: bool
    head_dim: int = 128
    kv_heads: int = 8
    vocabulary: int = 151_936


SHAPES: dict[str, Shape] = {
    "qwen3-0.6b": Shape(28, 1024, 16, 3072, True),
    "qwen3-1.7b": Shape(28, 2048, 16, 6144, True),
    "qwen3-4b": Shape(36, 2560, 32, 9728, True),
    "qwen3-8b": Shape(36, 4096, 32, 12288, False),
    "qwen3-14b": Shape(40, 5120, 40, 17408, False),
}


def find_shape(name: str) -> Shape:
    """The shape of a model's name.

    Raises:
        UserError: naming those that there are.
    """
    if name not in SHAPES:
        known = ", ".join(SHAPES)
        raise UserError(f"no shape '{name}'{nearest(name, SHAPES)}; there are {known}", "--model")
    return SHAPES[name]


def random_model(shape: Shape, device: torch.device, context: int = 40_960) -> PreTrainedModel:
    """A Qwen3 of this shape, in bfloat16 on a GPU and float32 elsewhere."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=context,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=shape.tied,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    try:
        with device:
            model: PreTrainedModel = Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    return model


def random_decoder(shape: Shape, device: torch.device, context: int = 40_960) -> Decoder:
    """Layers with random weights.

    What the fused matrices have copied is given up by the model, so that it is in memory once.
    """
    model: Any = random_model(shape, device, context)
    decoder = DeviceDecoder(model)
    decoder.reserve_turns(context)
    for layer in model.model.layers:
        attn, mlp = layer.self_attn, layer.mlp
        for fused in (attn.q_proj, attn.k_proj, attn.v_proj, mlp.gate_proj, mlp.up_proj):
            fused.weight.data = fused.weight.new_empty(0)
    return decoder


def weight_bytes(decoder: Decoder) -> int:
    """Bytes of weights that one step reads: every layer, the last norm and the output head."""
    parts = [x for w in decoder._weights for x in (w.norm_in, w.qkv, w.out, w.norm_mlp, w.gate_up)]
    parts += [x for w in decoder._weights for x in (w.down, w.head_norm, w.qkv_bias)]
    return sum(x.nbytes for x in [*parts, decoder._norm, decoder.head] if x is not None)


def step_bytes(decoder: Decoder, schedule: Schedule, batch: int, length: int) -> int:
    """The least that a step must move: weights, and of each sequence keys and values (those
    attended to, in sparse layers) and the landmarks of its full pages.
    """
    size = decoder.dtype.itemsize * decoder.kv_heads * decoder.head_dim
    total = weight_bytes(decoder)
    if schedule.is_dense:
        return total + batch * 2 * size * decoder.layers * length
    sparse = decoder.layers - schedule.dense_layers
    attended = int(schedule.attended_for([length])[0])
    pages = length // schedule.page_size
    marks = pages * (2 if schedule.landmark == "minmax" else 1) if attended < length else 0
    per_sequence = 2 * schedule.dense_layers * length + sparse * (2 * attended + marks)
    return total + batch * size * per_sequence
