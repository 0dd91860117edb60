"""LoRA adapters of a model, fused like its weights and applied beside them, never merged.

One engine can so serve the model with its adapters and without, request by request, and the weights
that training updates stay as they are. Adapters of a layer's projections are read from peft's own
modules; those of the head or the embedding would change what acceptance compares, and are refused.

Shape suffixes: R ranks of all parts together, I inputs, O outputs, N tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparrow_lab.errors import UserError


class LoraPart(NamedTuple):
    """What is added to one fused product: `x @ down.T @ up.T`."""

    down_RI: Tensor
    up_OR: Tensor
    """Scaled."""

    def add_to(self, y_NO: Tensor, x_NI: Tensor, on_N1: Tensor) -> None:
        """Add it in place, for tokens where `on` is 1 and not where it is 0."""
        y_NO.addmm_((x_NI @ self.down_RI.T).mul_(on_N1), self.up_OR.T)


@dataclass(frozen=True)
class LayerLora:
    """Adapters of one layer, by fused matrix; None where there is none."""

    qkv: LoraPart | None
    out: LoraPart | None
    gate_up: LoraPart | None
    down: LoraPart | None

    def parts(self) -> list[LoraPart | None]:
        """All four, in order."""
        return [self.qkv, self.out, self.gate_up, self.down]


def base_of(model: Any) -> Any:
    """The model that adapters were put into, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def has_adapters(model: Any) -> bool:
    """Whether any module of the model carries LoRA adapters.

    Raises:
        UserError: some are where none may be, or of a kind that cannot stand beside the weights.
    """
    found = False
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        found = True
        if name.rsplit(".", 1)[-1] in ("lm_head", "embed_tokens"):
            raise UserError(
                f"an adapter on '{name}': the rollout takes adapters of attention and MLP alone",
                "adapter",
            )
        if getattr(module, "merged", False):
            raise UserError(f"the adapter of '{name}' is merged; unmerge it", "adapter")
        if any(getattr(module, "use_dora", {}).values()):
            raise UserError(f"'{name}' has a DoRA adapter; LoRA alone is known", "adapter")
    return found


def fuse_lora(
    layer: Any, kv_heads: int, head_dim: int, norm_in: Tensor | None, norm_mlp: Tensor | None
) -> LayerLora:
    """The active adapters of one transformers layer, as they are now.

    Args:
        norm_in, norm_mlp: weights of the norms before attention and MLP where these are folded
            into the matrices, and so into the adapters; None where they are not.
    """
    attn, mlp = layer.self_attn, layer.mlp
    pairs = torch.arange(head_dim).view(2, -1).T.reshape(-1)

    def by_kv_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Rows in the order of the fused q, k, v matrix; see `weights.fuse_layer`."""
        q, k, v = (x.unflatten(0, (kv_heads, -1, head_dim)) for x in (q, k, v))
        at = pairs.to(q.device)
        return torch.cat([q[:, :, at], k[:, :, at], v], dim=1).flatten(0, 2)

    qkv = _joined([attn.q_proj, attn.k_proj, attn.v_proj], norm_in)
    gate_up = _joined([mlp.gate_proj, mlp.up_proj], norm_mlp)
    out, down = _joined([attn.o_proj], None), _joined([mlp.down_proj], None)
    return LayerLora(
        None if qkv is None else LoraPart(qkv[0], by_kv_head(*qkv[1])),
        None if out is None else LoraPart(out[0], out[1][0]),
        None if gate_up is None else LoraPart(gate_up[0], torch.cat(gate_up[1])),
        None if down is None else LoraPart(down[0], down[1][0]),
    )


def _joined(modules: list[Any], norm: Tensor | None) -> tuple[Tensor, list[Tensor]] | None:
    """Adapters of projections of one input: all ranks below each other, and for each projection
    its outputs [O, R], with zeros for the ranks of the others. None if there are none.
    """
    found = [(i, a, b) for i, module in enumerate(modules) for a, b in _active(module)]
    if not found:
        return None
    down = torch.cat([a for _, a, _ in found])
    ups = [down.new_zeros(module.weight.shape[0], len(down)) for module in modules]
    column = 0
    for i, a, b in found:
        ups[i][:, column : column + len(a)] = b
        column += len(a)
    return (down if norm is None else down * norm), ups


def _active(module: Any) -> list[tuple[Tensor, Tensor]]:
    """(A, scaled B) of a projection's active adapters, in the dtype of its weight."""
    if not hasattr(module, "lora_A"):
        return []
    kind = module.weight.dtype
    return [
        (
            module.lora_A[name].weight.detach().to(kind),
            (module.lora_B[name].weight.detach() * module.scaling[name]).to(kind),
        )
        for name in module.active_adapters
        if name in module.lora_A
    ]
