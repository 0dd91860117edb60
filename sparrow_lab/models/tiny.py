"""The built-in tiny models: Qwen3 decoders small enough to train on a laptop's core.

Each speaks one built-in task and ships with two warm starts, made by `sparrow-lab models
train-tiny` (see `warm_start.py`) and stored beside this file as safetensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparrow_lab.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class TinyShape:
    """Size of a tiny model; 4 query heads share 2 KV heads."""

    task: str
    hidden: int
    intermediate: int
    layers: int = 3
    head_dim: int = 16
    heads: int = 4
    kv_heads: int = 2
    context: int = 512


TINY: dict[str, TinyShape] = {
    "tiny-s": TinyShape("pointer_chase", hidden=64, intermediate=128),
    "tiny-m": TinyShape("pointer_chase", hidden=128, intermediate=256, head_dim=32),
    "tiny-walk": TinyShape("permutation_walk", hidden=96, intermediate=192, head_dim=24),
}


def build_tiny(name: str, seed: int) -> Qwen3ForCausalLM:
    """A freshly initialised tiny model in float32; the seed fixes every weight.

    Embeddings start small; projections are scaled by their fan-in, those that write into the
    residual stream by half of it, which is what lets so small a model find the look-up circuit.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from sparrow_lab.tasks.symbols import BOS, EOS, PAD, SYMBOLS

    shape = TINY[name]
    config = Qwen3Config(
        vocab_size=len(SYMBOLS),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        attention_dropout=0.0,
    )
    model: Qwen3ForCausalLM = Qwen3ForCausalLM(config)
    model.float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() != 2:
                weight.fill_(1.0)
            elif "embed_tokens" in key:
                weight.copy_(0.02 * torch.randn(weight.shape, generator=generator))
            else:
                scale = 0.5 if key.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                scale *= weight.shape[1] ** -0.5
                weight.copy_(scale * torch.randn(weight.shape, generator=generator))
    return model


def asset_folder(name: str, warm_start: int) -> Path:
    """Where a shipped warm start lies.

    Raises:
        UserError: if there is no such model or warm start, naming those that exist.
    """
    if name not in TINY:
        raise UserError(
            f"no tiny model '{name}'; there are {', '.join(TINY)}{nearest(name, TINY)}",
            "model.name",
        )
    folder = ASSETS / f"{name}-{warm_start}"
    if not (folder / "model.safetensors").is_file():
        found = sorted(
            int(p.parent.name.rsplit("-", 1)[1]) for p in ASSETS.glob(f"{name}-*/model.safetensors")
        )
        raise UserError(
            f"{name} has no warm start {warm_start}; there are {found or 'none'}",
            "model.warm_start",
        )
    return folder


def load_tiny(
    name: str, warm_start: int, dtype: str = "float32"
) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """A shipped warm start in evaluation mode, and the tokenizer."""
    import torch
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    folder = asset_folder(name, warm_start)
    model = Qwen3ForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa", local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.eval(), cast(Any, tokenizer)
