"""What is looked at before a model folder's weights are read.

Weights come from safetensors only: a pickle can run code when it is read, and so can a model that
brings its own Python. Both are refused, and nothing here imports torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROVENANCE = "provenance.json"
"""Where `models fetch` writes what a folder was made from, and its tokenizer's probes."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def check_plain(config: dict[str, Any], where: str) -> None:
    """Refuse a `config.json` with own code, with quantised weights or without a model type.

    Raises:
        UserError: any of these.
    """
    if config.get("auto_map"):
        raise UserError("the model brings its own Python code, which is never run", where)
    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise UserError(f"quantised weights ({method}) cannot be trained; dequantise first", where)
    if not isinstance(config.get("model_type"), str):
        raise UserError("no model_type in config.json", where)


def check_config(config: dict[str, Any], where: str) -> None:
    """Refuse a `config.json` that is not of a plain decoder of transformers.

    Raises:
        UserError: as `check_plain`, or an architecture that is no causal language model.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    check_plain(config, where)
    kind = config["model_type"]
    if config.get("is_encoder_decoder") or kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise UserError(f"'{kind}' is no decoder-only language model of this transformers", where)
    named = config.get("architectures") or []
    if named and not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in named):
        raise UserError(f"architecture {', '.join(named)} has no language-model head", where)


def weight_files(folder: Path) -> list[Path]:
    """The weight files that a folder should have: those of its index, or the one.

    Raises:
        UserError: the index cannot be read.
    """
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    try:
        parts = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"cannot be read: {error!r}", str(index)) from None
    return [folder / part for part in sorted(parts)]


def check_weights(folder: Path) -> None:
    """Refuse a folder without all of its safetensors.

    Raises:
        UserError: only pickles, nothing at all, or a part that the index names is missing.
    """
    files = weight_files(folder)
    missing = [path for path in files if not path.is_file()]
    if not missing:
        return
    if (folder / "model.safetensors.index.json").is_file():
        raise UserError(
            f"{len(missing)} of {len(files)} weight files are missing, first {missing[0].name}",
            str(folder),
        )
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"only pickled weights ({pickles[0]}), which can run code when read; save the model as "
            "safetensors",
            str(folder),
        )
    raise UserError("no model.safetensors", str(folder))


def check_probes(tokenizer: PreTrainedTokenizerBase, probes: dict[str, Any], where: str) -> None:
    """Compare token ids on known texts, both ways.

    Raises:
        UserError: a text has other ids, or does not come back from them.
    """
    for text, expected in probes.items():
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        if list(found) != list(expected):
            raise UserError(
                f"the tokenizer gives {list(found)} for {text!r}; the original {list(expected)}",
                where,
            )
        back = tokenizer.decode(found, clean_up_tokenization_spaces=False)
        if back != text:
            raise UserError(f"the tokenizer turns {text!r} into {back!r}", where)


def read_provenance(folder: Path) -> dict[str, Any] | None:
    """What `models fetch` wrote, or None for a folder that it did not make.

    Raises:
        UserError: the file is there but cannot be read.
    """
    path = folder / PROVENANCE
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read as JSON: {error}", str(path)) from None
    if not isinstance(found, dict):
        raise UserError("does not hold a JSON object", str(path))
    return found
