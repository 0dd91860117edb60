"""A transformers decoder taken apart into the few matrices that decoding needs.

Each layer's weights are fused for one product a sublayer. Rows of the fused q, k, v matrix lie KV
head by KV head: its query heads, its key, its value. A step's queries, keys and values of all
(sequence, KV head) pairs are then plain views of one product's output.

Rotary pairs, which transformers keep half a head apart, lie side by side, so that the rotation is
one complex product; queries and keys share the permutation, so every dot product is what the
model computes.

Shape suffixes: H query heads, K KV heads, G query heads of a KV head, D head dim, M model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparrow_lab.errors import UserError


@dataclass
class LayerWeights:
    """Fused weights of one layer; biases and head norms are None where a family has none.

    In float32 and float64 the norms' weights are folded into the matrix behind them, and the norms
    themselves are None. In half precision the product would be rounded once more, to another
    policy, so they stand apart. A norm divides by the square root of the *sum* of squares (see
    `Decoder`), so its weights hold the square root of M.
    """

    norm_in: Tensor | None
    qkv: Tensor
    """[K * (G + 2) * D, M]."""
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    """[G + 2, D]; ones for the value."""
    head_mean: Tensor | None
    """[G + 2, (G + 2) * D]: takes the mean square of every head out of a row of squares, and 0 for
    the value."""
    out: Tensor
    """[H * D, M]: transposed, as a product takes it; `down` too."""
    norm_mlp: Tensor | None
    gate_up: Tensor
    down: Tensor


def fuse_layer(layer: Any, kv_heads: int, head_dim: int, fold: bool = True) -> LayerWeights:
    """Fuse one transformers layer; reads the weights as they are now.

    Args:
        fold: False leaves the norms' weights as the model has them, in every dtype, for norms that
            divide by the root of the mean of squares.

    Raises:
        UserError: the layer has a bias that the layer loop does not add.
    """
    attn, mlp = layer.self_attn, layer.mlp
    if attn.o_proj.bias is not None:
        raise UserError("a bias in the attention's output projection is unknown")
    pairs = torch.arange(head_dim, device=attn.q_proj.weight.device).view(2, -1).T.reshape(-1)

    def by_kv_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows of the three projections in the fused order; a bias has no second axis."""
        q, k, v = (x.detach().unflatten(0, (kv_heads, -1, head_dim)) for x in (q, k, v))
        return torch.cat([q[:, :, pairs], k[:, :, pairs], v], dim=1).flatten(0, 2)

    qkv = by_kv_head(attn.q_proj.weight, attn.k_proj.weight, attn.v_proj.weight)
    bias = None
    if attn.q_proj.bias is not None:
        bias = by_kv_head(attn.q_proj.bias, attn.k_proj.bias, attn.v_proj.bias)
    wide = torch.float64 if qkv.dtype == torch.float64 else torch.float32
    folded = fold and qkv.dtype == wide
    head_norm = head_mean = None
    if getattr(attn, "q_norm", None) is not None:
        group = attn.q_proj.weight.shape[0] // (kv_heads * head_dim)
        q_norm, k_norm = attn.q_norm.weight.detach()[pairs], attn.k_norm.weight.detach()[pairs]
        ones = torch.ones_like(k_norm)
        head_norm = torch.stack([*[q_norm] * group, k_norm, ones])
        means = torch.eye(group + 2, dtype=wide, device=ones.device) / head_dim
        means[-1] = 0
        head_mean = means.repeat_interleave(head_dim, dim=1)
    root = qkv.shape[1] ** 0.5 if fold else 1.0
    norm_in = layer.input_layernorm.weight.detach() * root
    norm_mlp = layer.post_attention_layernorm.weight.detach() * root
    gate_up = torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()])
    return LayerWeights(
        norm_in=None if folded else norm_in,
        qkv=qkv * norm_in if folded else qkv,
        qkv_bias=bias,
        head_norm=head_norm,
        head_mean=head_mean,
        out=attn.o_proj.weight.detach().t(),
        norm_mlp=None if folded else norm_mlp,
        gate_up=gate_up * norm_mlp if folded else gate_up,
        down=mlp.down_proj.weight.detach().t(),
    )
