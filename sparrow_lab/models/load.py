"""Loading a model and its tokenizer: built-in, from a folder, or from the hub.

torch and transformers are imported when a model is loaded, not with this module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.checks import check_config, check_probes, check_weights, read_provenance
from sparrow_lab.models.device import check_device
from sparrow_lab.models.hub import hub_file, split_revision
from sparrow_lab.models.shape import find_folder, model_shape, read_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["load_model", "model_shape"]


def load_model(
    config: ModelConfig, device: str | None = None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in evaluation mode, in `config.dtype`, and its tokenizer.

    Weights are read from safetensors only, and a model's own Python code is never run.

    Args:
        device: where to put it; None: on `config.device`.

    Raises:
        UserError: anything about the name, the folder, the hub or the device that the user can
            put right.
    """
    place, where = (config.device, "model.device") if device is None else (device, "device")
    check_device(place, where)
    with quiet():
        model, tokenizer = _load(config)
        return _placed(model, place, where), tokenizer


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars, which would fill a worker's log."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _load(config: ModelConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from sparrow_lab.models.tiny import TINY, load_tiny

    if config.name in TINY:
        tiny, symbols = load_tiny(config.name, config.warm_start, config.dtype)
        return tiny, symbols
    folder = find_folder(config.name)
    where = f"model.name {config.name}"
    if folder is not None:
        where = str(folder)
        check_config(read_config(folder), where)
        check_weights(folder)
        source, revision = str(folder), None
    else:
        check_config(read_config(hub_file(config.name, "config.json").parent), where)
        source, revision = split_revision(config.name)
    tokenizer = _load_tokenizer(source, revision, where)
    provenance = read_provenance(folder) if folder is not None else None
    if provenance is not None:
        check_probes(tokenizer, provenance.get("probes", {}), where)
    model = _load_weights(source, revision, config.dtype, where)
    _check_fit(model, tokenizer, where)
    return model, tokenizer


def _load_weights(source: str, revision: str | None, dtype: str, where: str) -> PreTrainedModel:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"revision": revision} if revision else {}
    model: PreTrainedModel
    info: dict[str, Any]
    try:
        model, info = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]
            source,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=Path(source).is_dir(),
            output_loading_info=True,
            **options,
        )
    except SafetensorError as error:
        raise UserError(f"the weights are damaged: {error}", where) from None
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise UserError(f"transformers cannot load it: {first}", where) from None
    # transformers only warns of these and fills them with noise, or drops them
    for key, what in (("missing_keys", "are missing"), ("unexpected_keys", "have no place")):
        names = sorted(info.get(key, ()))
        if names:
            raise UserError(f"{len(names)} weights {what}, first {names[0]}", where)
    return model


def _load_tokenizer(source: str, revision: str | None, where: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"revision": revision} if revision else {}
    folder = Path(source)
    if folder.is_dir() and not any(folder.glob("tokenizer*")) and not any(folder.glob("vocab*")):
        raise UserError("no tokenizer beside the weights", where)
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False, local_files_only=folder.is_dir(), **options
        )
    except Exception as error:  # the tokenizers library raises bare Exception on a damaged file
        raise UserError(f"the tokenizer cannot be read: {error}", where) from None
    return tokenizer


def _check_fit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
    """Refuse a tokenizer with more tokens than the model has embeddings."""
    rows = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[index]
    if len(tokenizer) > rows:
        raise UserError(
            f"the tokenizer has {len(tokenizer)} tokens and the model {rows} embeddings", where
        )


def _placed(model: PreTrainedModel, device: str, where: str) -> PreTrainedModel:
    """The model on a device.

    Raises:
        UserError: the device is not there.
    """
    if device != "cpu":
        try:
            model.to(device)  # type: ignore[arg-type]
        except (RuntimeError, AssertionError) as error:
            first = str(error).splitlines()[0]
            raise UserError(f"the model cannot be put on '{device}': {first}", where) from None
    model.eval()
    return model
