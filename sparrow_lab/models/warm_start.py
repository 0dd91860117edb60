"""The recipe of the shipped warm starts: supervised training on faulty demonstrations.

The faults (wrong jumps, early give-ups) leave the policy right about 7 times in 10 and with a way
to fail, so that reinforcement learning has room in both directions. The look-up circuit appears
suddenly, at a step that depends on the seed; `train_tiny` trains on for a fixed number of steps
and says whether it did.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError, nearest
from sparrow_lab.models.save import save_model
from sparrow_lab.models.tiny import TINY, build_tiny


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of a warm start."""

    steps: int = 4000
    batch: int = 256
    lr: float = 3e-3
    wrong: float = 0.08
    give_up: float = 0.03
    lookup_weight: float = 1.0
    """Weight of the look-up tokens in the loss."""
    pairs: tuple[int, ...] = (16,)
    """Curriculum of table sizes; the next one starts when look-ups are right 9 times in 10."""


RECIPES: dict[str, Recipe] = {
    "tiny-s": Recipe(),
    "tiny-m": Recipe(lr=2e-3),
    "tiny-walk": Recipe(
        steps=4500, batch=64, wrong=0.16, give_up=0.004, lookup_weight=8.0, pairs=(12, 16, 24)
    ),
}


def make_batch(task: Any, recipe: Recipe, step: int, seed: int) -> tuple[Any, Any, Any]:
    """Tokens [B, T] int64, target mask [B, T] and look-up mask [B, T] of one step, as numpy arrays.

    The mask marks tokens of the answer; padding and the prompt are outside it.
    """
    from sparrow_lab.tasks.symbols import ARROW, KEY0, KEYS, LABEL0, LABELS, PAD

    prompts = task.prompts("train", step * recipe.batch, recipe.batch, seed + 10_000)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, 7])))
    rows = [(p.tokens, task.demonstration(p, rng, recipe.wrong, recipe.give_up)) for p in prompts]
    width = max(len(a) + len(b) for a, b in rows)
    tokens = np.full((len(rows), width), PAD, np.int64)
    answer = np.zeros((len(rows), width), bool)
    for i, (prompt, demo) in enumerate(rows):
        tokens[i, : len(prompt) + len(demo)] = [*prompt, *demo]
        answer[i, len(prompt) : len(prompt) + len(demo)] = True
    after_arrow = np.zeros_like(answer)
    after_arrow[:, 1:] = tokens[:, :-1] == ARROW
    value = (tokens >= KEY0) & (tokens < KEY0 + len(KEYS))
    value |= (tokens >= LABEL0) & (tokens < LABEL0 + len(LABELS))
    return tokens, answer, answer & after_arrow & value


def train_tiny(
    name: str,
    seed: int,
    to: Path,
    device: str = "cpu",
    recipe: Recipe | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train one warm start and save it (config, safetensors, tokenizer, `recipe.json`).

    The folder appears whole or not at all. Returns the last report: step, loss, share of look-up
    tokens predicted right, seconds.

    Raises:
        UserError: if there is no such tiny model, or the folder exists.
    """
    import torch
    import torch.nn.functional as F

    from sparrow_lab.tasks import make_task
    from sparrow_lab.tasks.symbols import build_tokenizer

    if name not in TINY:
        raise UserError(f"no tiny model '{name}'{nearest(name, TINY)}; there are {', '.join(TINY)}")
    if to.exists():
        raise UserError("this folder exists; name a new one", str(to))
    recipe = recipe or RECIPES[name]
    model: Any = build_tiny(name, seed)
    model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.lr, betas=(0.9, 0.95), weight_decay=0.01
    )
    level, row, began = 0, {}, time.monotonic()
    tasks = [
        make_task(TaskConfig.model_validate({"name": TINY[name].task, "params": {"pairs": n}}))
        for n in recipe.pairs
    ]
    for step in range(recipe.steps):
        lr = recipe.lr * min(1.0, (step + 1) / 100) * (1 - 0.95 * step / recipe.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        arrays = make_batch(tasks[level], recipe, step, seed)
        tokens, answer, lookup = (torch.from_numpy(x).to(device) for x in arrays)
        hidden = model.model(tokens[:, :-1]).last_hidden_state
        mask = answer[:, 1:]
        logits = model.lm_head(hidden[mask]).float()
        target, hard = tokens[:, 1:][mask], lookup[:, 1:][mask]
        loss_each = F.cross_entropy(logits, target, reduction="none")
        weight = torch.where(hard, recipe.lookup_weight, 1.0)
        loss = (loss_each * weight).sum() / weight.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99 or step == recipe.steps - 1:
            right = (logits.argmax(-1) == target)[hard].float().mean().item()
            row = {
                "step": step + 1,
                "of": recipe.steps,
                "pairs": recipe.pairs[level],
                "loss": loss.item(),
                "lookup_right": right,
                "seconds": time.monotonic() - began,
            }
            if report:
                report(row)
            # 1 - wrong is the best that faulty demonstrations allow
            if right > 0.9 * (1 - recipe.wrong) and level + 1 < len(tasks):
                level += 1
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}-") as scratch:
        part = Path(scratch) / "model"
        save_model(part, model.to("cpu"), build_tokenizer())
        record = {"model": name, "seed": seed, "recipe": asdict(recipe), "last": row}
        (part / "recipe.json").write_text(json.dumps(record, indent=1) + "\n")
        os.rename(part, to)
    return row
