"""A decoder's layers for a GPU: one kernel between two matrix products, weights that stay in place.

The maths is `Decoder`'s, with two differences. Norms stand apart with the weights that the model
has, also in float32, so that rounding is the model's own. And what `turns` returns is the positions
themselves, which the kernel looks up. Without a GPU the same runs on the kernels' definitions.

Shape suffixes: N tokens, X (token, KV head) pairs, G query heads of a KV head, D head dim, M model
width, P positions, C pairs of a head dim.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_kernels.layer import norm_and_rotate, rms_norm, swiglu
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.lora import LayerLora, fuse_lora
from sparrow_lab.rollout.weights import LayerWeights, fuse_layer

Ints = npt.NDArray[np.int64]


class DeviceDecoder(Decoder):
    """Layer maths that a CUDA graph can hold: `refresh` writes into the tensors that it knows."""

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the model's present weights, in place."""
        core: Any = self.model.model
        head = cast(Any, self.model).lm_head.weight.detach()
        whole = [core.embed_tokens.weight.detach(), head, core.norm.weight.detach()]
        if not self._weights:
            self.embedding, self.head, self._norm = whole
            self._weights = [self._fuse(layer) for layer in core.layers]
            if self.adapted:
                self._lora = [self._fuse_lora(layer) for layer in core.layers]
            return
        for mine, new in zip((self.embedding, self.head, self._norm), whole, strict=True):
            _take_over(mine, new)
        for weights, layer in zip(self._weights, core.layers, strict=True):
            fused = self._fuse(layer)
            for part in fields(LayerWeights):
                _take_over(getattr(weights, part.name), getattr(fused, part.name))
        for lora, layer in zip(self._lora, core.layers if self._lora else (), strict=True):
            for mine, new in zip(lora.parts(), self._fuse_lora(layer).parts(), strict=True):
                for kept, fresh in zip(mine or (), new or (), strict=True):
                    _take_over(kept, fresh)

    def _fuse(self, layer: Any) -> LayerWeights:
        return fuse_layer(layer, self.kv_heads, self.head_dim, fold=False)

    @torch.no_grad()
    def reserve_turns(self, high: int) -> None:
        """Make the table of rotations reach position `high`."""
        before = self._turns
        super().reserve_turns(high)
        if self._turns is not before and self._turns is not None:
            self._turns_PC2 = torch.view_as_real(self._turns).contiguous()

    @torch.no_grad()
    def turns(self, positions: Ints) -> Tensor:
        """The positions, on the device."""
        self.reserve_turns(int(positions.max()))
        return torch.from_numpy(positions).to(self.device)

    def turns_at(self, position_N: Tensor) -> Tensor:
        """The positions as they are; all within what has been reserved."""
        return position_N

    def _normed(self, x_NM: Tensor, norm: Tensor | None) -> Tensor:
        assert norm is not None
        return rms_norm(x_NM, norm, self.eps)

    def project(self, i: int, x_NM: Tensor, turns: Tensor, on_N1: Tensor | None = None) -> Tensor:
        """Queries and keys, normed and rotated, and values of layer i: [X, G + 2, D].

        Args:
            turns: the tokens' positions.
            on_N1: 1 for tokens with the model's adapters, 0 for those without; None: all without.
        """
        w = self._weights[i]
        normed = self._normed(x_NM, w.norm_in)
        y = F.linear(normed, w.qkv, w.qkv_bias)
        if on_N1 is not None and (part := self._lora[i].qkv) is not None:
            part.add_to(y, normed, on_N1)
        y_NKHD = y.view(len(x_NM), self.kv_heads, self.group + 2, self.head_dim)
        norm_and_rotate(y_NKHD, w.head_norm, self._turns_PC2, turns, self.eps)
        return y_NKHD.flatten(0, 1)

    def _gated(self, both: Tensor) -> Tensor:
        return swiglu(both)

    def _fuse_lora(self, layer: Any) -> LayerLora:
        return fuse_lora(layer, self.kv_heads, self.head_dim, None, None)


def _take_over(mine: Tensor | None, new: Tensor | None) -> None:
    """Copy new numbers into a tensor, unless it is the model's own memory."""
    if mine is None or new is None:
        assert mine is new
    elif mine.data_ptr() != new.data_ptr():
        mine.copy_(new)
