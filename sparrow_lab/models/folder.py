"""What can be known of a local model folder before anything starts: no torch, no weights read."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sparrow_lab.errors import UserError
from sparrow_lab.models.checks import check_plain, check_weights, weight_files
from sparrow_lab.models.families import check_supported
from sparrow_lab.models.shape import read_config

_LAYER = re.compile(r"\blayers\.(\d+)\.")

Shapes = dict[str, list[int]]


def check_folder(folder: Path) -> None:
    """Refuse a folder that no worker could load and roll out.

    Looked at are `config.json`, the headers of the weights (names and shapes) and whether there is
    a tokenizer; the rest shows when a worker loads it.

    Raises:
        UserError: says what is wrong; its place is the file or folder.
    """
    config, where = read_config(folder), str(folder)
    check_plain(config, where)
    try:
        check_supported(SimpleNamespace(**config))
    except UserError as error:
        raise UserError(error.message, where) from None
    check_weights(folder)
    _check_tensors(config, _shapes(folder), where)
    if not any(folder.glob("tokenizer*")) and not any(folder.glob("vocab*")):
        raise UserError("no tokenizer beside the weights", where)


def _shapes(folder: Path) -> Shapes:
    """Names and shapes from the headers of all weight files."""
    from safetensors import SafetensorError, safe_open

    shapes: Shapes = {}
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="np") as tensors:
                names = tensors.keys()  # the object itself cannot be iterated over
                shapes |= {name: tensors.get_slice(name).get_shape() for name in names}
        except (SafetensorError, OSError) as error:
            raise UserError(f"the weights are damaged: {error}", str(path)) from None
    return shapes


def _check_tensors(config: dict[str, Any], shapes: Shapes, where: str) -> None:
    """Compare config and weights where a mistake of the folder would show."""
    layers = {int(found[1]) for name in shapes if (found := _LAYER.search(name))}
    said = config.get("num_hidden_layers")
    if said != len(layers):
        raise UserError(
            f"config.json says {said} layers, but there are weights of {len(layers)}", where
        )
    head_norms = any(name.endswith("q_norm.weight") for name in shapes)
    if head_norms != (config["model_type"] == "qwen3"):
        has = "weights with norms of heads" if head_norms else "no weights for norms of heads"
        raise UserError(f"config.json says '{config['model_type']}', but there are {has}", where)
    embedding = next((s for n, s in shapes.items() if n.endswith("embed_tokens.weight")), None)
    expected = [config.get("vocab_size"), config.get("hidden_size")]
    if embedding != expected:
        raise UserError(
            f"config.json says embeddings of {expected}, but the weights have {embedding}", where
        )
