"""Writing a model as a folder that every command here, and transformers, can load."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.models.load import quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_model(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> None:
    """Write safetensors, config and, if there is one, the tokenizer into `folder`."""
    with quiet():
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    mask = _umask()
    for path in folder.iterdir():  # safetensors makes files that only their owner may read
        if path.is_file():
            path.chmod(0o666 & ~mask)


def _umask() -> int:
    """The process's umask; reading it means setting it for a moment."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
