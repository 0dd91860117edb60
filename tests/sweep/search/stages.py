"""Fake stages with a known answer, for searches; importable by workers.

The curve says that the budget b holds p5 at b / 100, in steps of 8 tokens: so tau 0.41 to 0.48
is one schedule. A training run collapses when its budget is below `THRESHOLD`; evaluation is
best at a learning rate of 1e-4. Options come from the environment, for the task of these points
is the real one, whose options are checked: FAKE_PAUSE in seconds, FAKE_FAIL a stage,
FAKE_FLAKY a seed whose runs disagree with the others, FAKE_CENSOR a range of budgets "40-60"
whose runs break off.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from sparrow_lab.runs.events import EventWriter
from sparrow_lab.sparsity.make import make_schedule
from sparrow_lab.sparsity.schedule import DENSE, Schedule
from sparrow_lab.stages.context import StageContext

STAGES = {
    name: f"tests.sweep.search.stages:{name}"
    for name in ("calibrate", "schedule", "train", "evaluate")
}
THRESHOLD = 60
PEAK_LR = 1e-4


def calibrate(ctx: StageContext) -> dict[str, Any]:
    """Write a curve with one length bin."""
    _begin(ctx)
    rows = [
        {
            "budget": budget,
            "bin_start": 0,
            "trajectory": "own",
            "prompts": 64,
            "tokens": 640,
            "p05": budget / 100,
            "p05_low": None,
            "p05_high": None,
        }
        for budget in range(24, 104, 8)
    ]
    size = ctx.config.sparsity.page_size
    data = {"schema": 1, "page_size": size, "bin_width": 16, "rows": rows}
    ctx.folder.write_bytes("curve.json", json.dumps(data).encode())
    return {"metrics": {}, "time": {}}


def schedule(ctx: StageContext) -> dict[str, Any]:
    """Make the schedule as the real stage does, without measuring it."""
    _begin(ctx)
    curve = ctx.needed("calibrate").path / "curve.json" if "calibrate" in ctx.point.needs else None
    made, _ = make_schedule(ctx.config, curve)
    made.save(ctx.folder.path / "schedule.json")
    metrics = {"acceptance/p05": min(made.budget_at(10), 100) / 100}
    names = {"schedule_digest": made.digest, "schedule_name": made.name}
    return {"metrics": metrics, "time": {}, **names}


def train(ctx: StageContext) -> dict[str, Any]:
    """Rise, and fall in the end if the budget is too small."""
    _begin(ctx)
    made = Schedule.load(ctx.needed("schedule").path / "schedule.json")
    budget = min(made.budget_at(10), DENSE)
    falls = budget < THRESHOLD
    if os.environ.get("FAKE_FLAKY") == str(ctx.config.seed):
        falls = not falls
    low, high = (int(x) for x in os.environ.get("FAKE_CENSOR", "0-0").split("-"))
    values = [0.2, 0.5, 0.8, 0.1, 0.1] if falls else [0.2, 0.5, 0.8, 0.9, 0.9]
    with EventWriter(ctx.attempt) as events:
        for step, value in enumerate(values):
            if step == 3 and low <= budget <= high:
                raise RuntimeError("the node has no more memory")
            events.write(step, {"evaluate/reward": value})
    return {"metrics": {"evaluate/reward": values[-1]}, "time": {}}


def evaluate(ctx: StageContext) -> dict[str, Any]:
    """1 at the best learning rate, less for every decade from it; a little by the seed."""
    _begin(ctx)
    return {
        "metrics": {"evaluate/reward": reward(ctx.config.train.lr, ctx.config.seed)},
        "time": {},
    }


def reward(lr: float, seed: int) -> float:
    """What `evaluate` measures."""
    return 1 - 0.2 * abs(math.log10(lr / PEAK_LR)) + 0.01 * seed


def starts(folder: Path) -> int:
    """How often a point's stage was begun."""
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


def _begin(ctx: StageContext) -> None:
    with (ctx.folder.path / "starts").open("a") as stream:
        stream.write(f"{ctx.attempt.number}\n")
    if os.environ.get("FAKE_FAIL") == ctx.point.stage:
        raise ValueError("out of order")
    time.sleep(float(os.environ.get("FAKE_PAUSE", "0")))
