"""Loading models: what is refused, what is checked, and that nothing unsafe is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model, model_shape
from sparrow_lab.models.shape import describe, local_models
from tests.models.folders import edit_config, write_model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("made") / "model")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "model"))


def load(name: str | Path, **fields: Any) -> Any:
    return load_model(ModelConfig(name=str(name), **fields), "cpu")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_folder_loads_in_evaluation_mode_with_sdpa(folder: Path, dtype: str) -> None:
    model, tokenizer = load(folder, dtype=dtype)
    assert model.dtype == getattr(torch, dtype) and not model.training
    assert model.config._attn_implementation == "sdpa"
    assert tokenizer.decode(tokenizer("hi").input_ids) == "hi"


def test_a_tiny_model_loads() -> None:
    model, tokenizer = load("tiny-s")
    assert not model.training and len(tokenizer) == model.config.vocab_size


def test_progress_bars_stay_as_they_were(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging

    load(folder)
    assert logging.is_progress_bar_enabled()
    assert "Loading weights" not in capfd.readouterr().err


def drop(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def only_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    drop(folder, "model.safetensors")


def index_without_part(folder: Path) -> None:
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = json.dumps({"metadata": {}, "weight_map": weights})
    (folder / "model.safetensors.index.json").write_text(index)
    (folder / "model.safetensors").rename(folder / weights["a"])


def without_a_weight(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def other_probe(folder: Path) -> None:
    (folder / "provenance.json").write_text(json.dumps({"probes": {"hi": [1, 2]}}))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (only_pickle, "only pickled weights (pytorch_model.bin), which can run code"),
        (lambda f: drop(f, "model.safetensors"), "no model.safetensors"),
        (index_without_part, "1 of 2 weight files are missing, first model-00002"),
        (without_a_weight, "1 weights are missing, first model.layers.1.mlp.down_proj.weight"),
        (cut_weights, "the weights are damaged"),
        (lambda f: drop(f, "config.json"), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "does not hold a JSON object"),
        (lambda f: edit_config(f, auto_map={"AutoModel": "x.Y"}), "its own Python code"),
        (
            lambda f: edit_config(f, quantization_config={"quant_method": "gptq"}),
            "quantised weights (gptq) cannot be trained",
        ),
        (lambda f: edit_config(f, model_type="t5", is_encoder_decoder=True), "'t5' is no decoder"),
        (lambda f: edit_config(f, model_type="llamma"), "'llamma' is no decoder"),
        (
            lambda f: edit_config(f, architectures=["LlamaForSequenceClassification"]),
            "LlamaForSequenceClassification has no language-model head",
        ),
        (lambda f: edit_config(f, num_hidden_layers=1), "weights have no place"),
        (lambda f: edit_config(f, hidden_size=16), "transformers cannot load it"),
        (lambda f: drop(f, "tokenizer.json", "tokenizer_config.json"), "no tokenizer beside"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "the tokenizer cannot be read"),
        (other_probe, "the tokenizer gives"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(folder: Path, spoil: Any, words: str) -> None:
    spoil(folder)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert words in str(caught.value) and str(folder) in str(caught.value)


def test_a_tokenizer_with_more_tokens_than_embeddings_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", vocabulary=200)
    with pytest.raises(UserError, match="the tokenizer has 259 tokens and the model 200"):
        load(folder)


def test_what_lies_there_instead_of_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="an adapter without its base model"):
        load(tmp_path / "adapter")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "w.gguf").write_text("")
    with pytest.raises(UserError, match="GGUF files are not read"):
        load(tmp_path / "g")
    (tmp_path / "up" / "inner").mkdir(parents=True)
    (tmp_path / "up" / "inner" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="its subfolder 'inner'"):
        load(tmp_path / "up")
    with pytest.raises(UserError, match="is a file"):
        load(tmp_path / "g" / "w.gguf")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny-x", "did you mean 'tiny-s'"),
        ("nothing", "no model 'nothing'"),
        ("./nothing", "no model './nothing'"),
        ("smollm2", "'models/smollm2-135m-instruct' after 'sparrow-lab models fetch smollm2'"),
        ("models/smollm2-135m-instruct", "run 'sparrow-lab models fetch smollm2'"),
        ("models/other", "no model 'models/other'"),
        ("owner/name", "no such folder, and the hub cannot be reached"),
        ("owner/name@main", "no such folder, and the hub cannot be reached"),
        ("a/b/c", "no model 'a/b/c'"),
    ],
)
def test_names_that_lead_nowhere(name: str, words: str) -> None:
    for action in (load, model_shape):
        with pytest.raises(UserError) as caught:
            action(name)
        assert words in str(caught.value)


def test_models_are_found_under_the_models_folder(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made, tmp_path / "store" / "mine")
    monkeypatch.setenv("SPARROW_MODELS", str(tmp_path / "store"))
    assert local_models() == ["models/mine"]
    assert model_shape("models/mine")["hidden_size"] == 32
    assert load("models/mine")[0].config.num_hidden_layers == 2
    monkeypatch.delenv("SPARROW_MODELS")
    (tmp_path / "cwd").mkdir()
    (tmp_path / "cwd" / "models").symlink_to(tmp_path / "store")
    monkeypatch.chdir(tmp_path / "cwd")
    assert model_shape("models/mine")["hidden_size"] == 32


def test_shape_and_description_need_no_weights(folder: Path) -> None:
    drop(folder, "model.safetensors")
    assert model_shape(str(folder))["num_key_value_heads"] == 2
    assert model_shape("tiny-m")["hidden_size"] == 128
    shown = describe(str(folder))
    assert shown["attention"] == "4 query heads, 2 KV heads of 8"
    assert shown["KV of a token"].startswith("128 bytes")


def test_an_unknown_device_is_named(folder: Path) -> None:
    with pytest.raises(UserError, match="cannot be put on 'nonsense'"):
        load_model(ModelConfig(name=str(folder)), "nonsense")
