"""A model folder is refused when planning, for what would stop every worker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.models.folder import check_folder
from sparrow_lab.models.tiny import asset_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a model that ships, with a tokenizer's file."""
    path = tmp_path / "model"
    shutil.copytree(asset_folder("tiny-s", 0), path)
    (path / "tokenizer.json").touch()
    return path


def edit(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def test_a_whole_folder_passes(folder: Path) -> None:
    check_folder(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit(model_type="gpt2"), "'gpt2' cannot be rolled out; known: qwen3"),
        (edit(model_type="qwen2"), "says 'qwen2', but there are weights with norms of heads"),
        (edit(model_type=None), "no model_type"),
        (edit(num_hidden_layers=4), "says 4 layers, but there are weights of 3"),
        (edit(vocab_size=70), r"embeddings of \[70, 64\], but the weights have \[71, 64\]"),
        (edit(auto_map={"AutoModel": "x.py"}), "own Python code"),
        (edit(rope_scaling={"rope_type": "dynamic"}, rope_parameters=None), "depends on the"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "weights are damaged"),
        (cut, "weights are damaged"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: [p.unlink() for p in f.glob("tokenizer*")], "no tokenizer"),
    ],
)
def test_a_folder_with_a_fault(folder: Path, change: Callable[[Path], Any], words: str) -> None:
    change(folder)
    with pytest.raises(UserError, match=words):
        check_folder(folder)
