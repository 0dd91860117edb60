"""Checkpoints bring a run back to the bit, or are refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sparrow_lab.errors import UserError
from sparrow_lab.train import checkpoint
from sparrow_lab.train.checkpoint import (
    KEEP,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.rollout.small_models import own_copy, small_model


def trained(steps: int, model: Any, optimizer: torch.optim.Optimizer, first: int = 0) -> None:
    """A few updates on made-up gradients that depend on the step."""
    for step in range(first, first + steps):
        noise = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=noise, dtype=torch.float64).to(p.dtype)
        optimizer.step()


def fresh(**settings: Any) -> tuple[Any, torch.optim.Optimizer]:
    model = own_copy(small_model(**settings))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tied", [False, True])
def test_going_on_from_a_checkpoint_is_going_on(
    tmp_path: Path, dtype: torch.dtype, tied: bool
) -> None:
    model, optimizer = fresh(dtype=dtype, tied=tied)
    trained(3, model, optimizer)
    state = {"schedule": "abc", "history": {"length": [1.5, math.nan]}}
    path = save_checkpoint(tmp_path, 3, model, optimizer, state)
    trained(2, model, optimizer, first=3)
    other, its = fresh(dtype=dtype, tied=tied)
    back = load_checkpoint(path, other, its, {"schedule": "abc"})
    assert back["step"] == 3 and back["history"]["length"][0] == 1.5
    assert math.isnan(back["history"]["length"][1])
    trained(2, other, its, first=3)
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(a, b), name
    if tied:
        assert other.lm_head.weight is other.model.embed_tokens.weight


def test_a_checkpoint_before_the_first_update_has_no_moments(tmp_path: Path) -> None:
    model, optimizer = fresh()
    path = save_checkpoint(tmp_path, 0, model, optimizer, {})
    other, its = fresh(seed=1)
    assert load_checkpoint(path, other, its, {})["step"] == 0
    assert not its.state
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "llama"}, "another architecture: model.layers.0.self_attn.k_norm.weight"),
        ({"layers": 3}, "another architecture: model.layers.2"),
        ({"vocabulary": 29}, r"shape \(23, 16\), the model has \(29, 16\)"),
        ({"group": 1}, r"shape \(32, 16\), the model has \(16, 16\)"),
    ],
)
def test_another_architecture_is_refused(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    path = save_checkpoint(tmp_path, 1, *fresh(), {})
    with pytest.raises(UserError, match=message) as caught:
        load_checkpoint(path, *fresh(**settings), {})
    assert caught.value.where == str(path)


def test_another_schedule_is_refused_naming_both(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, *fresh(), {"schedule": "aaa", "point": "p"})
    with pytest.raises(UserError, match="saved with schedule aaa, the run has bbb"):
        load_checkpoint(path, *fresh(), {"point": "p", "schedule": "bbb"})
    with pytest.raises(UserError, match="saved with seed None, the run has 3"):
        load_checkpoint(path, *fresh(), {"seed": 3})


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_an_unreadable_state_is_refused(tmp_path: Path, content: str) -> None:
    path = save_checkpoint(tmp_path, 1, *fresh(), {})
    (path / "state.json").write_text(content)
    with pytest.raises(UserError, match=r"state\.json"):
        load_checkpoint(path, *fresh(), {})


def test_the_newest_of_all_attempts_is_found(tmp_path: Path) -> None:
    model, optimizer = fresh()
    first, second, third = (tmp_path / name for name in "abc")
    assert latest_checkpoint([]) is None and latest_checkpoint([first, second]) is None
    save_checkpoint(first, 9, model, optimizer, {})
    save_checkpoint(first, 10, model, optimizer, {})
    assert latest_checkpoint([first, second]) == first / "step-10"
    save_checkpoint(second, 10, model, optimizer, {})
    assert latest_checkpoint([first, second, third]) == second / "step-10"
    save_checkpoint(third, 2, model, optimizer, {})
    assert latest_checkpoint([first, second, third]) == second / "step-10"


def test_older_checkpoints_are_removed(tmp_path: Path) -> None:
    model, optimizer = fresh()
    for step in (8, 9, 10, 11):
        save_checkpoint(tmp_path, step, model, optimizer, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-10", "step-11"]
    assert KEEP == 2


def test_saving_again_replaces(tmp_path: Path) -> None:
    model, optimizer = fresh()
    save_checkpoint(tmp_path, 1, model, optimizer, {"note": "old"})
    trained(1, model, optimizer)
    path = save_checkpoint(tmp_path, 1, model, optimizer, {"note": "new"})
    other, its = fresh()
    assert load_checkpoint(path, other, its, {})["note"] == "new"
    assert torch.equal(other.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("when", ["json", "rename"])
def test_a_write_that_dies_leaves_the_last_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    model, optimizer = fresh()
    save_checkpoint(tmp_path, 1, model, optimizer, {})

    def die(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    module: Any = checkpoint
    target = {"json": (module.json, "dumps"), "rename": (module.os, "rename")}[when]
    with monkeypatch.context() as patch:
        patch.setattr(*target, die)
        with pytest.raises(OSError, match="no space"):
            save_checkpoint(tmp_path, 2, model, optimizer, {})
    assert latest_checkpoint([tmp_path]) == tmp_path / "step-1"
    assert save_checkpoint(tmp_path, 2, model, optimizer, {}) == tmp_path / "step-2"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1", "step-2"]
