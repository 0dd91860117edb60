"""Checkpoints that resume to the bit: weights, optimizer moments, and the step to run next.

Noise and batches are keyed by step, so no generator state is kept. Tensors are safetensors,
everything else is JSON; a checkpoint appears whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KEEP = 2
"""Checkpoints kept of an attempt; older ones are removed."""


def _named(model: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def save_checkpoint(
    folder: Path,
    step: int,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> Path:
    """Write `folder/step-<step>`; `state` is JSON: what must agree at resume, and histories."""
    from safetensors.torch import save_file

    target = folder / f"step-{step}"
    part = folder / f".step-{step}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    weights = {name: p.detach().contiguous() for name, p in _named(model)}
    moments = {
        f"{name}|{key}": value.contiguous()
        for name, p in _named(model)
        for key, value in optimizer.state.get(p, {}).items()
    }
    save_file(weights, part / "weights.safetensors")
    save_file(moments, part / "optimizer.safetensors")
    (part / "state.json").write_text(json.dumps({**state, "step": step}))
    for file in part.iterdir():
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
    shutil.rmtree(target, ignore_errors=True)
    os.rename(part, target)
    for old in sorted(_steps(folder))[:-KEEP]:
        shutil.rmtree(folder / f"step-{old}", ignore_errors=True)
    return target


def _steps(folder: Path) -> list[int]:
    found = (p.name.removeprefix("step-") for p in folder.glob("step-*"))
    return [int(n) for n in found if n.isdigit()]


def latest_checkpoint(folders: Sequence[Path]) -> Path | None:
    """The checkpoint with the highest step; among equals, that of the last folder."""
    best: tuple[int, int, Path] | None = None
    for i, folder in enumerate(folders):
        for step in _steps(folder):
            key = (step, i, folder / f"step-{step}")
            if best is None or key[:2] > best[:2]:
                best = key
    return best[2] if best else None


def load_checkpoint(
    path: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    must_agree: dict[str, Any],
) -> dict[str, Any]:
    """Load weights and moments in place; return the state.

    Raises:
        UserError: the checkpoint is of another architecture, or a value of `must_agree` (the
            schedule's digest, say) is not what it was saved with; both sides are named.
    """
    from safetensors.torch import load_file

    state = read_json(path / "state.json")
    if not isinstance(state, dict):
        raise UserError("no readable state.json", str(path))
    for key, value in must_agree.items():
        if state.get(key) != value:
            raise UserError(
                f"was saved with {key} {state.get(key)}, the run has {value}", str(path)
            )
    weights = load_file(path / "weights.safetensors")
    named = dict(_named(model))
    if weights.keys() != named.keys():
        odd = sorted(weights.keys() ^ named.keys())
        raise UserError(f"is of another architecture: {odd[0]} and {len(odd) - 1} more", str(path))
    with torch.no_grad():
        for name, p in named.items():
            if weights[name].shape != p.shape:
                found, has = tuple(weights[name].shape), tuple(p.shape)
                raise UserError(f"holds {name} of shape {found}, the model has {has}", str(path))
            p.copy_(weights[name])
    moments: dict[str, dict[str, torch.Tensor]] = {}
    for key, value in load_file(path / "optimizer.safetensors").items():
        name, _, field = key.partition("|")
        moments.setdefault(name, {})[field] = value
    for name, p in named.items():
        if name in moments:
            optimizer.state[p] = {
                k: v if k == "step" else v.to(p.device) for k, v in moments[name].items()
            }
    return state
