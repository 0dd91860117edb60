"""The dense policy's forward pass over a packed stream, with gradients for the model's weights.

It is what transformers computes for every sample alone, but prompts are computed once, nothing is
padded, and norms and rotations are single steps with gradients of their own: on a CPU most of the
time of so small a model goes into passing over memory.

Shape suffixes: L tokens of the stream, H query heads, K KV heads, D head dim, M model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.models.families import check_supported
from sparrow_lab.train.attention import HeadOrder, packed_attention
from sparrow_lab.train.packing import PackedRows

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def dense_hidden(model: PreTrainedModel, rows: PackedRows) -> Tensor:
    """Final hidden states [X, M] behind each generated token, by full attention, with gradients.

    Dropout is not applied: the policy that is updated is the one that is rolled out.

    Raises:
        UserError: an architecture or an option that this pass does not know.
    """
    check_supported(model.config)
    core, config = cast(Any, model).model, cast(Any, model).config
    x_LM = core.embed_tokens(rows.tokens_L)
    cos, sin = core.rotary_emb(x_LM, rows.positions_L[None])
    half = cos.shape[-1] // 2
    turns = cos[0, :, None, :half], sin[0, :, None, :half]
    order = HeadOrder.of(rows, config.num_attention_heads, config.num_key_value_heads)
    for layer in core.layers:
        x_LM = _layer(layer, x_LM, rows, order, turns, config.rms_norm_eps)
    return rms_norm(x_LM[rows.source_X], core.norm.weight, config.rms_norm_eps)


def _layer(
    layer: Any,
    x_LM: Tensor,
    rows: PackedRows,
    order: HeadOrder,
    turns: tuple[Tensor, Tensor],
    eps: float,
) -> Tensor:
    attn, mlp = layer.self_attn, layer.mlp
    D = attn.head_dim
    parts = (attn.q_proj, attn.k_proj, attn.v_proj)
    bias = None
    if attn.q_proj.bias is not None:
        bias = torch.cat([part.bias for part in parts])
    y_LC = F.linear(
        rms_norm(x_LM, layer.input_layernorm.weight, eps),
        torch.cat([part.weight for part in parts]),
        bias,
    )
    values = len(attn.v_proj.weight)
    turned, v_LC = y_LC.split((y_LC.shape[1] - values, values), dim=1)
    qk_LHD = turned.unflatten(1, (-1, D))
    H, K = qk_LHD.shape[1] - values // D, values // D
    if getattr(attn, "q_norm", None) is not None:
        weight = torch.cat([attn.q_norm.weight.expand(H, D), attn.k_norm.weight.expand(K, D)])
        qk_LHD = rms_norm(qk_LHD, weight, eps)
    q_LHD, k_LKD = rotate(qk_LHD, *turns).split((H, K), dim=1)
    kv_LHD = torch.cat([k_LKD, v_LC.unflatten(1, (K, D))], dim=1)
    attended = packed_attention(q_LHD, kv_LHD, rows, order, attn.scaling)
    x_LM = torch.addmm(x_LM, attended, attn.o_proj.weight.t())
    gate, up = F.linear(
        rms_norm(x_LM, layer.post_attention_layernorm.weight, eps),
        torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
    ).chunk(2, dim=1)
    x_LM = torch.addmm(x_LM, F.silu(gate) * up, mlp.down_proj.weight.t())
    return x_LM


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / root mean square of its last axis, times the weight; in float32 or better.

    Args:
        x: [..., W]; weight: [W], or with the last axes of x.
    """
    return cast(Tensor, _RmsNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        width = x.shape[-1]
        inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(width).add_(eps).rsqrt_()
        unit: Tensor = (wide * inverse).to(x.dtype)
        ctx.save_for_backward(unit, inverse, weight)
        return unit * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grads
        unit, inverse, weight = ctx.saved_tensors
        along = grad.to(inverse.dtype) * unit
        of_weight = along.flatten(0, -weight.dim() - 1).sum(dim=0).to(weight.dtype)
        if weight.dim() == 1:
            share = torch.matmul(along, weight.to(along.dtype)).div_(len(weight)).unsqueeze(-1)
        else:
            share = (along * weight).mean(dim=-1, keepdim=True)
        of_x = (grad.to(inverse.dtype) * weight).addcmul_(unit, share, value=-1).mul_(inverse)
        return of_x.to(grad.dtype), of_weight, None


def rotate(x_LHD: Tensor, cos_L1C: Tensor, sin_L1C: Tensor) -> Tensor:
    """Turn the pairs (i, i + D / 2) of every head; C = D / 2."""
    return cast(Tensor, _Rotate.apply(x_LHD, cos_L1C, sin_L1C))  # type: ignore[no-untyped-call]


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        cos, sin = ctx.saved_tensors
        return _turn(grad, cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    c, d = out.chunk(2, dim=-1)
    torch.mul(a, cos, out=c).addcmul_(b, sin, value=-1)
    torch.mul(b, cos, out=d).addcmul_(a, sin)
    return out
