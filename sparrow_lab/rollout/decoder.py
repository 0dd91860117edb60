"""A transformers decoder taken apart into the few matrices that decoding needs.

The engine runs its own loop over layers, so that attention reads pages. The weights stay those of
the transformers model: `refresh` folds them into fused matrices after every update. Rotary
pairs are interleaved in the fused matrix, which turns the rotation into one complex product;
queries and keys share the permutation, so every dot product is what the model computes.

Shape suffixes: N sequences, T tokens, H query heads, K KV heads, D head dim, M model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES = ("qwen3", "qwen2", "llama")
"""`model_type` of the architectures whose layers this file knows."""


@dataclass
class _Layer:
    """Fused weights of one layer; biases and head norms are None where a family has none."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    head_norm: Tensor | None
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


def check_supported(config: Any) -> None:
    """Refuse, by name, an architecture or an option that the layer loop does not implement."""
    kind = config.model_type
    if kind not in FAMILIES:
        raise UserError(f"architecture '{kind}' cannot be rolled out; known: {', '.join(FAMILIES)}")
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layers != {"full_attention"}:
        raise UserError(f"'{kind}' with {sorted(layers - {'full_attention'})} layers is unknown")
    if config.hidden_act != "silu":
        raise UserError(f"activation '{config.hidden_act}' is unknown; silu is")
    if getattr(config, "mlp_bias", False):
        raise UserError(f"'{kind}' with biases in its MLP is unknown")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") in ("dynamic", "longrope"):
        raise UserError(f"rotary type '{rope['rope_type']}' depends on the length: unknown")


class Decoder:
    """Layer maths of one model; holds no cache and no state of any sequence."""

    def __init__(self, model: PreTrainedModel) -> None:
        check_supported(model.config)
        config: Any = model.config
        self.model = model
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.width = int(config.hidden_size)
        self.eps = float(config.rms_norm_eps)
        self.scale = self.head_dim**-0.5
        self._weights: list[_Layer] = []
        self._turns: Tensor | None = None
        self.refresh()

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the model's present weights into the fused ones; call it after every update."""
        core: Any = self.model.model
        self.embedding = cast(Tensor, core.embed_tokens.weight).detach()
        self.head = cast(Tensor, cast(Any, self.model).lm_head.weight).detach()
        self.norm = cast(Tensor, core.norm.weight).detach()
        half = torch.arange(self.head_dim).view(2, -1).T.reshape(-1)
        turned = self.heads + self.kv_heads
        rows = torch.arange(turned * self.head_dim).view(turned, self.head_dim)[:, half]
        fresh = []
        for layer in core.layers:
            attn, mlp = layer.self_attn, layer.mlp
            qk = torch.cat([attn.q_proj.weight, attn.k_proj.weight])[rows.reshape(-1)]
            bias = None
            if attn.q_proj.bias is not None:
                qk_bias = torch.cat([attn.q_proj.bias, attn.k_proj.bias])[rows.reshape(-1)]
                bias = torch.cat([qk_bias, attn.v_proj.bias])
            if attn.o_proj.bias is not None:
                raise UserError("a bias in the attention's output projection is unknown")
            head_norm = None
            if getattr(attn, "q_norm", None) is not None:
                q = attn.q_norm.weight[half].expand(self.heads, -1)
                k = attn.k_norm.weight[half].expand(self.kv_heads, -1)
                head_norm = torch.cat([q, k])
            fresh.append(
                _Layer(
                    norm_in=layer.input_layernorm.weight.detach(),
                    qkv=torch.cat([qk, attn.v_proj.weight]),
                    qkv_bias=bias,
                    head_norm=head_norm,
                    out=attn.o_proj.weight.detach(),
                    norm_mlp=layer.post_attention_layernorm.weight.detach(),
                    gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                    down=mlp.down_proj.weight.detach(),
                )
            )
        self._weights = fresh

    def turns(self, positions: Tensor) -> Tensor:
        """Rotations of these positions, complex [..., 1, D/2]."""
        need = int(positions.max()) + 1
        if self._turns is None or len(self._turns) < need:
            at = torch.arange(max(need, 256) * 2, device=self.device)[None]
            wide = torch.zeros(1, dtype=torch.float64 if self._is_wide() else torch.float32)
            cos, sin = cast(Any, self.model.model).rotary_emb(wide.to(self.device), at)
            half = self.head_dim // 2
            self._turns = torch.complex(cos[0, :, :half], sin[0, :, :half])
        return self._turns[positions].unsqueeze(-2)

    def _is_wide(self) -> bool:
        return self.dtype == torch.float64

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., M]."""
        return F.embedding(tokens, self.embedding)

    def project(self, i: int, x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[..., M] -> q [..., H, D], k [..., K, D] (normed and rotated) and v [..., K, D]."""
        w = self._weights[i]
        y = F.linear(F.rms_norm(x, (self.width,), w.norm_in, self.eps), w.qkv, w.qkv_bias)
        y = y.unflatten(-1, (self.heads + 2 * self.kv_heads, self.head_dim))
        turned = self.heads + self.kv_heads
        qk, v = y[..., :turned, :], y[..., turned:, :]
        if w.head_norm is not None:
            qk = F.rms_norm(qk, (self.head_dim,), None, self.eps) * w.head_norm
        wide = qk if self._is_wide() else qk.float()
        pairs = torch.view_as_complex(wide.unflatten(-1, (self.head_dim // 2, 2)).contiguous())
        qk = torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
        return qk[..., : self.heads, :], qk[..., self.heads :, :], v

    def finish(self, i: int, x: Tensor, attended: Tensor) -> Tensor:
        """Residual stream [..., M] after the layer, given attention's output [..., H * D]."""
        w = self._weights[i]
        x = x + F.linear(attended, w.out)
        gate, up = F.linear(F.rms_norm(x, (self.width,), w.norm_mlp, self.eps), w.gate_up).chunk(
            2, dim=-1
        )
        return x + F.linear(F.silu(gate) * up, w.down)

    def final(self, x: Tensor) -> Tensor:
        """Final hidden state [..., M], after the last norm: what the output head reads."""
        return F.rms_norm(x, (self.width,), self.norm, self.eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., M] -> [..., V] in float32 or better."""
        out = F.linear(hidden, self.head)
        return out if out.dtype == torch.float64 else out.float()

    def prefill(self, tokens_NT: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Dense causal pass from position 0.

        Shorter prompts may be padded on the right: causality keeps padding out of their results.

        Returns:
            Final hidden states [N, T, M] and, per layer, keys and values [N, T, K, D].
        """
        x = self.embed(tokens_NT)
        turns = self.turns(torch.arange(tokens_NT.shape[1], device=self.device))
        cache = []
        for i in range(self.layers):
            q, k, v = self.project(i, x, turns)
            cache.append((k, v))
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.transpose(1, 2),
                v.transpose(1, 2),
                is_causal=True,
                scale=self.scale,
                enable_gqa=True,
            )
            x = self.finish(i, x, attended.transpose(1, 2).flatten(2))
        return self.final(x), cache
