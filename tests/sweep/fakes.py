"""Quick stand-ins for the stages, and plans made of them; importable by workers.

A fake training run is a chain of integers: each step follows from the last, so that a
step left out, done twice or taken from another run changes the end. `expected` works
the end out without running anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.config.schema import PointConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.events import EventWriter
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.stages.context import Interrupted, StageContext

STAGES = {
    name: f"tests.sweep.fakes:{name}" for name in ("calibrate", "schedule", "train", "evaluate")
}

MODULUS = 1_000_003


def following(value: int, step: int, seed: int) -> int:
    """The chain's next value."""
    return (value * 31 + 7 * step + seed + 1) % MODULUS


def chain_end(steps: int, seed: int) -> int:
    """The chain's value after so many steps."""
    value = 1
    for step in range(1, steps + 1):
        value = following(value, step, seed)
    return value


def calibrate(ctx: StageContext) -> dict[str, Any]:
    """Sleep, count the start."""
    _begin(ctx)
    return {"metrics": {"value": 1.0}, "time": {}}


def schedule(ctx: StageContext) -> dict[str, Any]:
    """Write a schedule.json whose digest is the option `digest`, else the point's own id."""
    params = _begin(ctx)
    digest = params.get("digest", ctx.point.id)
    text = json.dumps({"schema": 1, "digest": digest, "name": ctx.point.short()})
    ctx.folder.write_bytes("schedule.json", text.encode())
    return {"metrics": {}, "time": {}, "schedule_digest": digest}


def train(ctx: StageContext) -> dict[str, Any]:
    """Go on from the newest checkpoint; stop at a step boundary when asked to."""
    params = _begin(ctx)
    steps, seed = ctx.config.train.steps, ctx.config.seed
    step, value = _newest_checkpoint(ctx)
    _have_children(ctx, params.get("children", 0))
    deaf = time.monotonic() + params.get("deaf", 0)
    while time.monotonic() < deaf:
        time.sleep(0.1)
    with EventWriter(ctx.attempt) as events:
        while step < steps:
            if ctx.should_stop():
                if ctx.still_owner():
                    _save(ctx, step, value)
                raise Interrupted(ctx.stop.reason)
            step += 1
            value = following(value, step, seed)
            events.write(step, {"reward/mean": float(value), "acceptance/p05": 0.9})
            ctx.progress(step, steps)
            if step == params.get("fail_at"):
                raise ValueError(f"no luck at step {step}")
            if step == params.get("vanish_at"):
                os.kill(os.getpid(), 9)
            if step % ctx.config.train.checkpoint_every == 0:
                _save(ctx, step, value)
            time.sleep(params.get("sleep", 0.0))
    return {"metrics": {"value": float(value)}, "time": {"train_s": 0.0}}


def evaluate(ctx: StageContext) -> dict[str, Any]:
    """Twice the value of the training run."""
    _begin(ctx)
    result = ctx.needed("train").read_result()
    assert result is not None
    return {"metrics": {"evaluate/reward": 2 * result["metrics"]["value"]}, "time": {}}


def _begin(ctx: StageContext) -> dict[str, Any]:
    """Count the start in `starts` beside the attempts, then do as the point's options say."""
    params = ctx.config.task.params
    with (ctx.folder.path / "starts").open("a") as stream:
        stream.write(f"{ctx.attempt.number}\n")
    if params.get("tell"):
        print(f"OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}")
    if params.get("mistake"):
        raise UserError("page size 16 against 32", "schedule.json")
    if params.get("fail_first") and ctx.attempt.number <= params["fail_first"]:
        raise ValueError("not this time")
    if params.get("always_fail") == ctx.point.stage:
        raise RuntimeError(f"broken for seed {ctx.config.seed}")
    time.sleep(params.get("pause", 0.0))
    return dict(params)


def _have_children(ctx: StageContext, count: int) -> None:
    """Start processes that no polite signal ends, each second one in a session of its own."""
    code = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (10, 12, 15)]"
    for i in range(count):
        command = [sys.executable, "-S", "-c", f"{code}; time.sleep(600)"]
        child = subprocess.Popen(command, start_new_session=i % 2 == 1)
        with (ctx.folder.path / "children").open("a") as stream:
            stream.write(f"{child.pid}\n")


def children(folder: Path) -> list[int]:
    """The pids of all children that a point's workers have had."""
    path = folder / "children"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def _save(ctx: StageContext, step: int, value: int) -> None:
    folder = ctx.attempt.checkpoints
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{step}.tmp"
    temporary.write_text(json.dumps({"step": step, "value": value}))
    temporary.rename(folder / f"step-{step}.json")


def _newest_checkpoint(ctx: StageContext) -> tuple[int, int]:
    newest = (0, 1)
    for attempt in ctx.previous:
        for path in attempt.checkpoints.glob("step-*.json"):
            state = json.loads(path.read_text())
            newest = max(newest, (state["step"], state["value"]))
    return newest


# ---------------------------------------------------------------------------- plans


def make_point(
    point_id: str,
    stage: str,
    needs: dict[str, str] | None = None,
    label: dict[str, Any] | None = None,
    **settings: Any,
) -> PlannedPoint:
    """A point; `steps`, `every`, `seed` and options of the fakes (`sleep`, `fail_at`, ...)."""
    train_section = {
        "steps": settings.pop("steps", 5),
        "checkpoint_every": settings.pop("every", 2),
    }
    config = PointConfig.model_validate(
        {
            "train": train_section,
            "seed": settings.pop("seed", 0),
            "threads": settings.pop("threads", 1),
            "task": {"params": settings},
        }
    )
    return PlannedPoint(point_id, stage, needs or {}, label or {}, config.model_dump(mode="json"))


def make_plan(
    taus: Sequence[float] = (0.8, 0.9),
    seeds: Iterable[int] = (0,),
    name: str = "fake",
    **settings: Any,
) -> Plan:
    """One calibration, a schedule for each tau, train and evaluate for each tau and seed.

    `digest` gives all schedules that digest; `of={(tau, seed): {...}}` adds options to
    single train points.
    """
    seeds, special = list(seeds), settings.pop("of", {})
    digest = {"digest": settings.pop("digest")} if "digest" in settings else {}
    quick = {k: v for k, v in settings.items() if k in ("pause", "always_fail")}
    calibrated = make_point("c0000000", "calibrate", label={"model": "tiny-s"}, **quick)
    schedules, trains, evaluations = [], [], []
    for i, tau in enumerate(taus):
        label = {"model": "tiny-s", "tau": tau}
        needs = {"calibrate": calibrated.id}
        scheduled = make_point(f"5c00000{i}", "schedule", needs, label, **quick, **digest)
        schedules.append(scheduled)
        for seed in seeds:
            both = {**label, "seed": seed}
            own = {**settings, **special.get((tau, seed), {}), "seed": seed}
            trained = make_point(
                f"7a{i:03d}{seed:03d}", "train", {"schedule": scheduled.id}, both, **own
            )
            trains.append(trained)
            evaluations.append(
                make_point(f"e0{i:03d}{seed:03d}", "evaluate", {"train": trained.id}, both, **quick)
            )
    return Plan(name, {}, (calibrated, *schedules, *trains, *evaluations))


def expected(point: PlannedPoint) -> float:
    """The true value of a train point."""
    return float(chain_end(point.config["train"]["steps"], point.config["seed"]))


def starts(folder: Path) -> int:
    """How often a point's stage was begun."""
    path = folder / "starts"
    return len(path.read_text().splitlines()) if path.exists() else 0
