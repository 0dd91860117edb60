"""The maths of a decoder's layers, for the engine's own loop over them.

The engine runs its own loop so that attention reads pages. The weights stay those of the
transformers model: `refresh` folds them into fused matrices after every update (`weights.py`).

Shape suffixes: N tokens (one a sequence in decoding), T tokens of a prompt, X (token, KV head)
pairs, H query heads, K KV heads, G query heads of a KV head, D head dim, M model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.models.families import check_supported
from sparrow_lab.rollout.lora import LayerLora, base_of, fuse_lora, has_adapters
from sparrow_lab.rollout.products import add_product, linear
from sparrow_lab.rollout.weights import LayerWeights, fuse_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ints = npt.NDArray[np.int64]

_BLOCK = 64
"""Positions whose rotations are laid out for heads together."""


class Decoder:
    """Layer maths of one model; holds no cache and no state of any sequence."""

    def __init__(self, model: PreTrainedModel) -> None:
        check_supported(model.config)
        config: Any = model.config
        self.model = base_of(model)
        self.adapted = has_adapters(model)
        """Whether the model has LoRA adapters, which `project` and `finish` add where asked to."""
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self.kv_heads = int(config.num_key_value_heads)
        self.group = self.heads // self.kv_heads
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // self.heads)
        self.width = int(config.hidden_size)
        self.eps = float(config.rms_norm_eps)
        self.scale = self.head_dim**-0.5
        self._weights: list[LayerWeights] = []
        self._lora: list[LayerLora] = []
        self._turns: Tensor | None = None
        self.refresh()

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def wide(self) -> torch.dtype:
        """The dtype of norms, rotations and logits: float32 or better."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @torch.no_grad()
    def refresh(self) -> None:
        """Fold the model's present weights into the fused ones; call it after every update."""
        core: Any = self.model.model
        self.embedding = cast(Tensor, core.embed_tokens.weight).detach()
        self.head = cast(Tensor, cast(Any, self.model).lm_head.weight).detach()
        self._norm = cast(Tensor, core.norm.weight).detach() * self.width**0.5
        self._is_half = self.dtype != self.wide
        self._weights = [fuse_layer(layer, self.kv_heads, self.head_dim) for layer in core.layers]
        if self.adapted:
            self._lora = [self._fuse_lora(layer) for layer in core.layers]
        wide: dict[str, Any] = {"dtype": self.wide, "device": self.device}
        self._root = torch.tensor((self.width * self.eps) ** 0.5, **wide)
        # added to the mean squares of a KV head's parts: for the value it makes the square root 1
        self._eps_H = torch.tensor([self.eps] * (self.group + 1) + [1.0], **wide)
        self._block: tuple[int, Tensor] | None = None

    def _fuse_lora(self, layer: Any) -> LayerLora:
        norms = (layer.input_layernorm.weight, layer.post_attention_layernorm.weight)
        folded = [norm.detach() * self.width**0.5 for norm in norms]
        first, second = (None, None) if self._is_half else folded
        return fuse_lora(layer, self.kv_heads, self.head_dim, first, second)

    def turns(self, positions: Ints) -> Tensor:
        """Rotation of each position, complex [N, 1, G + 2, D/2]; 1 for the value."""
        self.reserve_turns(int(positions.max()))
        return self.turns_at(torch.from_numpy(positions).to(self.device))

    @torch.no_grad()
    def reserve_turns(self, high: int) -> None:
        """Make the table of rotations reach position `high`, for `turns_at`."""
        if self._turns is None or len(self._turns) <= high:
            at = torch.arange(max(high + 1, 256) * 2, device=self.device)[None]
            like = torch.zeros(1, dtype=self.wide, device=self.device)
            cos, sin = cast(Any, self.model.model).rotary_emb(like, at)
            half = self.head_dim // 2
            self._turns = torch.complex(cos[0, :, :half], sin[0, :, :half])

    @torch.no_grad()
    def turns_at(self, position_N: Tensor) -> Tensor:
        """`turns` of positions that are on the device, all within what has been reserved."""
        assert self._turns is not None
        turns = self._turns[position_N][:, None, None]
        out: Tensor = turns.new_ones((len(position_N), 1, self.group + 2, self.head_dim // 2))
        out[:, :, :-1] = turns
        return out

    def turn(self, position: int) -> Tensor:
        """Rotation of one position, complex [1, G + 2, D/2]; made for many at a time."""
        start = position // _BLOCK * _BLOCK
        if self._block is None or self._block[0] != start:
            self._block = start, self.turns(np.arange(start, start + _BLOCK))
        return self._block[1][position - start]

    def embed(self, tokens: Tensor) -> Tensor:
        """[...] ids -> [..., M]."""
        return F.embedding(tokens, self.embedding)

    def _normed(self, x_NM: Tensor, norm: Tensor | None) -> Tensor:
        """x / sqrt(sum of squares + M * eps), times the norm's weight if it is not folded."""
        wide = x_NM.to(self.wide) if self._is_half else x_NM
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).hypot_(self._root)
        y: Tensor = wide / length
        return y if norm is None else y.to(x_NM.dtype).mul_(norm)

    def project(self, i: int, x_NM: Tensor, turns: Tensor, on_N1: Tensor | None = None) -> Tensor:
        """Queries and keys, normed and rotated, and values of layer i.

        Args:
            turns: rotations of the tokens' positions, or of the one position of all.
            on_N1: 1 for tokens with the model's adapters, 0 for those without; None: all without.

        Returns:
            [X, G + 2, D]: the query heads of a KV head, its key, its value.
        """
        w = self._weights[i]
        N, K, G, D = len(x_NM), self.kv_heads, self.group, self.head_dim
        normed = self._normed(x_NM, w.norm_in)
        y = linear(normed, w.qkv, w.qkv_bias)
        if on_N1 is not None and (part := self._lora[i].qkv) is not None:
            part.add_to(y, normed, on_N1)
        y = y.to(self.wide) if self._is_half else y
        # values ride along through norm and rotation, times 1: whole rows are faster than parts
        y_XHD = y.view(N * K, G + 2, D)
        if w.head_norm is not None and w.head_mean is not None:
            y_XC = y.view(N * K, -1)
            scaled = F.linear(y_XC * y_XC, w.head_mean, self._eps_H).rsqrt_()
            y_XHD.mul_(scaled.unsqueeze(2))
            if self._is_half:  # rounded before the norm's weight, as in the model
                y_XHD.copy_(y_XHD.to(x_NM.dtype).mul_(w.head_norm))
            else:
                y_XHD.mul_(w.head_norm)
        torch.view_as_complex(y.view(N, K, G + 2, D // 2, 2)).mul_(turns)
        return y_XHD.to(x_NM.dtype) if self._is_half else y_XHD

    def finish(self, i: int, x_NM: Tensor, attended: Tensor, on_N1: Tensor | None = None) -> Tensor:
        """Residual stream after the layer, written into `x_NM`, given attention's [N, H * D]."""
        w = self._weights[i]
        lora = None if on_N1 is None else self._lora[i]
        add_product(x_NM, attended, w.out)
        if lora is not None and on_N1 is not None and lora.out is not None:
            lora.out.add_to(x_NM, attended, on_N1)
        normed = self._normed(x_NM, w.norm_mlp)
        both = linear(normed, w.gate_up)
        if lora is not None and on_N1 is not None and lora.gate_up is not None:
            lora.gate_up.add_to(both, normed, on_N1)
        inner = self._gated(both)
        add_product(x_NM, inner, w.down)
        if lora is not None and on_N1 is not None and lora.down is not None:
            lora.down.add_to(x_NM, inner, on_N1)
        return x_NM

    def _gated(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def final(self, x_NM: Tensor) -> Tensor:
        """Final hidden state, after the last norm: what the output head reads."""
        return self._normed(x_NM, self._norm)

    def scores(self, hidden: Tensor) -> Tensor:
        """[..., M] -> logits [..., V] as the head gives them, in its dtype."""
        return linear(hidden, self.head)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., M] -> [..., V] in float32 or better."""
        return self.scores(hidden).to(self.wide)

    def prefill(self, tokens_PT: Tensor, on_P: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Dense causal pass over P prompts from position 0.

        Shorter prompts may be padded on the right: causality keeps padding out of their results.

        Args:
            on_P: 1 for prompts with the model's adapters, 0 for those without; None: all without.

        Returns:
            Final hidden states [P, T, M] and, per layer, keys and values [2, P, K, T, D].
        """
        P, T = tokens_PT.shape
        K, G, D = self.kv_heads, self.group, self.head_dim
        x = self.embed(tokens_PT.reshape(-1))
        turns = self.turns(np.tile(np.arange(T), P))
        on_N1 = None if on_P is None else on_P.to(x.dtype).repeat_interleave(T)[:, None]
        cache = []
        for i in range(self.layers):
            y = self.project(i, x, turns, on_N1).view(P, T, K, G + 2, D).permute(3, 0, 2, 1, 4)
            q = y[:G].permute(1, 2, 0, 3, 4).reshape(P, K * G, T, D)
            kv = y[G:].contiguous()
            attended = F.scaled_dot_product_attention(
                q, kv[0], kv[1], is_causal=True, scale=self.scale, enable_gqa=True
            )
            x = self.finish(i, x, attended.transpose(1, 2).reshape(P * T, -1), on_N1)
            cache.append(kv)
        return self.final(x).view(P, T, -1), cache
