"""Finding a model by name, and its `config.json` without torch.

A model's name enters every point id, so it should not depend on the machine: `models/<folder>` is
looked up under `$SPARROW_MODELS` where that is set, else under the current folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError, nearest
from sparrow_lab.models.sources import SOURCES
from sparrow_lab.models.tiny import TINY, asset_folder

ENVIRONMENT = "SPARROW_MODELS"


def models_root() -> Path:
    """The folder of fetched models: `$SPARROW_MODELS`, or `models` in the current folder."""
    return Path(os.environ.get(ENVIRONMENT) or "models").expanduser()


def local_models() -> list[str]:
    """Names, `models/<folder>`, of the model folders under `models_root`, sorted."""
    found = sorted(path.parent.name for path in models_root().glob("*/config.json"))
    return [f"models/{name}" for name in found]


def find_folder(name: str) -> Path | None:
    """The folder of a local model, or None when the name is that of a model on the hub.

    Raises:
        UserError: the name can only be a folder, and there is none; says how to get it.
    """
    given = Path(name).expanduser()
    parts = given.parts
    in_root = len(parts) == 2 and parts[0] == "models"
    path = models_root() / parts[1] if in_root else given
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise UserError(f"no model '{name}': {error.strerror}", "model.name") from None
    if is_folder:
        return path
    if is_file:
        raise UserError(f"'{name}' is a file; name the folder that holds it", "model.name")
    for source in SOURCES.values():
        if name in (source.name, source.folder) or (in_root and parts[1] == source.folder):
            known = f"models/{source.folder}"
            fetch = f"sparrow-lab models fetch {source.name}"
            if name == known:
                raise UserError(f"not fetched yet; run '{fetch}'", f"model.name {name}")
            raise UserError(f"no model '{name}'; it is '{known}' after '{fetch}'", "model.name")
    is_path = in_root or given.is_absolute() or name.startswith((".", "~"))
    if not is_path and name.count("/") == 1:
        return None
    allowed = [*TINY, *local_models()]
    raise UserError(
        f"no model '{name}'{nearest(name, allowed)}; there are {', '.join(allowed)}, any local "
        "folder, or owner/name on the hub",
        "model.name",
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The object in a model folder's `config.json`.

    Raises:
        UserError: missing, unreadable or not an object; says what lies there instead.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"no config.json{_instead(folder)}", str(folder))
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read as JSON: {error}", str(path)) from None
    if not isinstance(config, dict):
        raise UserError("does not hold a JSON object", str(path))
    return config


def _instead(folder: Path) -> str:
    """What a folder without `config.json` seems to be."""
    if (folder / "adapter_config.json").is_file():
        return "; this is an adapter without its base model"
    if any(folder.glob("*.gguf")):
        return "; GGUF files are not read, save the model as safetensors"
    inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
    return f"; did you mean its subfolder '{inner[0]}'?" if inner else ""


def model_shape(name: str) -> dict[str, Any]:
    """`config.json` of a built-in, local or hub model, without torch and without weights.

    Raises:
        UserError: there is no such model, or the hub cannot be reached.
    """
    if name in TINY:
        return read_config(asset_folder(name, 0))
    folder = find_folder(name)
    if folder is not None:
        return read_config(folder)
    from sparrow_lab.models.hub import hub_file

    return read_config(hub_file(name, "config.json").parent)


def describe(name: str) -> dict[str, str]:
    """Sizes and origin of a model in words, in the order to show them.

    Raises:
        UserError: as `model_shape`.
    """
    from sparrow_lab.models.checks import read_provenance

    config = model_shape(name)
    heads, layers = config.get("num_attention_heads"), config.get("num_hidden_layers")
    kv_heads = config.get("num_key_value_heads", heads)
    hidden = config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and isinstance(hidden, int) and isinstance(heads, int):
        head_dim = hidden // heads
    rows: dict[str, Any] = {
        "name": name,
        "architecture": ", ".join(config.get("architectures") or [config.get("model_type", "?")]),
        "layers": layers,
        "hidden size": hidden,
        "attention": f"{heads} query heads, {kv_heads} KV heads of {head_dim}",
        "vocabulary": config.get("vocab_size"),
        "context": config.get("max_position_embeddings"),
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
    }
    if isinstance(layers, int) and isinstance(kv_heads, int) and isinstance(head_dim, int):
        rows["KV of a token"] = f"{4 * layers * kv_heads * head_dim:,} bytes in 16 bits"
    folder = asset_folder(name, 0) if name in TINY else None
    if folder is None and name not in TINY:
        folder = find_folder(name)
    if folder is not None:
        rows["folder"] = folder
        origin = read_provenance(folder)
        if origin is not None:
            rows["made from"] = (
                f"{origin.get('original')} ({origin.get('quantised')}), "
                f"{origin.get('package')} {origin.get('version')}"
            )
            rows["licence"] = origin.get("licence")
    return {key: str(value) for key, value in rows.items() if value is not None}
