"""The recipe of the warm starts: repeatable to the bit, and whole or absent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sparrow_lab.config.schema import ModelConfig, TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.models.tiny import TINY, build_tiny
from sparrow_lab.models.warm_start import RECIPES, Recipe, make_batch, train_tiny
from sparrow_lab.tasks import make_task
from sparrow_lab.tasks import symbols as sym

QUICK = Recipe(steps=3, batch=4)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", ["tiny-s", "tiny-walk"])
def test_two_runs_of_one_seed_are_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    recipe = replace(RECIPES[name], steps=3, batch=4)
    rows = [train_tiny(name, 5, tmp_path / x, recipe=recipe) for x in "ab"]
    a, b = (weights(tmp_path / x) for x in "ab")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert rows[0]["loss"] == rows[1]["loss"]
    train_tiny(name, 6, tmp_path / "c", recipe=recipe)
    assert not all(torch.equal(a[k], v) for k, v in weights(tmp_path / "c").items())
    fresh = dict(build_tiny(name, 5).named_parameters())
    assert not all(torch.equal(a[k], fresh[k]) for k in a)


def test_the_folder_is_a_model_that_loads(tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    last = train_tiny("tiny-s", 0, tmp_path / "deep" / "m", recipe=QUICK, report=reports.append)
    assert last["step"] == last["of"] == 3 and reports == [last]
    assert np.isfinite(last["loss"])
    model, tokenizer = load_model(ModelConfig(name=str(tmp_path / "deep" / "m")))
    assert len(tokenizer) == len(sym.SYMBOLS)
    saved = weights(tmp_path / "deep" / "m")
    assert all(torch.equal(p, saved[k]) for k, p in model.named_parameters())
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["m"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "m"
    target.mkdir() if kind == "folder" else target.write_text("mine")
    with pytest.raises(UserError, match="exists") as caught:
        train_tiny("tiny-s", 0, target, recipe=QUICK)
    assert caught.value.where == str(target)
    assert kind == "folder" or target.read_text() == "mine"


def test_an_unknown_model_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'tiny-m'"):
        train_tiny("tiny-mm", 0, tmp_path / "m", recipe=QUICK)


def test_a_run_that_dies_leaves_nothing(tmp_path: Path) -> None:
    def die(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_tiny("tiny-s", 0, tmp_path / "m", recipe=QUICK, report=die)
    assert list(tmp_path.iterdir()) == []


def test_every_tiny_model_has_a_recipe() -> None:
    assert RECIPES.keys() == TINY.keys()


@pytest.mark.parametrize("name", sorted(TINY))
def test_batches_mark_the_answers_and_their_lookups(name: str) -> None:
    task: Any = make_task(TaskConfig.model_validate({"name": TINY[name].task}))
    recipe = replace(RECIPES[name], batch=6)
    tokens, answer, lookup = make_batch(task, recipe, step=2, seed=1)
    again = make_batch(task, recipe, step=2, seed=1)
    assert all(np.array_equal(a, b) for a, b in zip((tokens, answer, lookup), again, strict=True))
    assert not np.array_equal(make_batch(task, recipe, 3, 1)[0][:, :50], tokens[:, :50])
    prompts = task.prompts("train", 2 * 6, 6, 10_001)
    for row, prompt in enumerate(prompts):
        n = len(prompt.tokens)
        assert tuple(tokens[row, :n]) == prompt.tokens
        (marked,) = np.nonzero(answer[row])
        assert marked[0] == n and (np.diff(marked) == 1).all()
        assert (tokens[row, marked[-1] + 1 :] == sym.PAD).all()
        for at in np.flatnonzero(lookup[row]):
            assert answer[row, at] and tokens[row, at - 1] == sym.ARROW
        arrows = [at for at in marked if tokens[row, at - 1] == sym.ARROW]
        assert len(arrows) == lookup[row].sum()
