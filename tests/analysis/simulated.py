"""Whole run folders with a known truth, written through `sparrow_lab.runs`.

A `World` says which levels of sparsity exist, what acceptance each has, and how likely a run is to
collapse; `write_sweep` turns it into a sweep folder such as a real sweep leaves behind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sparrow_lab.runs.events import EventWriter, compact
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sparsity.schedule import DENSE, Schedule

OWNER = {"host": "simulated", "pid": 1, "start": 0.0, "token": "simulated"}
PROMPT, BIN, CONTEXT = 32, 32, 256
RESERVED_FOR = {4: 20, 8: 24, 16: 48, 32: 96}


@dataclass(frozen=True)
class Level:
    """One level of sparsity of one setting, and the acceptance of the initial policy there."""

    model: str
    page_size: int
    tau: float | str
    p05: float
    mean: float
    name: str = ""
    """Several levels with one name are one schedule: their runs are aliases."""
    extra: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class World:
    """What is planted: levels, seeds, and the chance of collapse at each level."""

    levels: Sequence[Level]
    collapse: Callable[[Level], float]
    seeds: int = 3
    dense: bool = True
    dense_collapse: float = 0.0
    steps: int = 40
    evaluate_every: int = 4
    stop_at: Callable[[Level, int], int | None] = field(default=lambda level, seed: None)
    """Step at which a run breaks off without a result; None runs to the end."""
    nan_from: Callable[[Level, int], int | None] = field(default=lambda level, seed: None)
    """Step from which evaluation is NaN."""
    verdict: dict[str, Any] = field(
        default_factory=lambda: {"metric": "evaluate/reward", "fall": 0.25, "stay": 2}
    )


def ladder(
    p05: Sequence[float],
    *,
    model: str = "tiny-s",
    page_size: int = 8,
    mean: Callable[[float], float] = lambda p05: 1 - 0.2 * (1 - p05),
    **extra: Any,
) -> list[Level]:
    """Levels of one setting whose measured p5 misses the tau aimed at by a little."""
    return [
        Level(model, page_size, round(x, 2), x, mean(x), extra=tuple(extra.items())) for x in p05
    ]


def step_at(threshold: float, width: float = 0.0) -> Callable[[Level], float]:
    """Chance of collapse: one below the threshold and zero above; logistic with a width."""

    def chance(level: Level) -> float:
        if width == 0:
            return float(level.p05 < threshold)
        return float(1 / (1 + np.exp((level.p05 - threshold) / width)))

    return chance


def write_sweep(root: Path, world: World, name: str = "simulated", seed: int = 0) -> SweepFolder:
    """Write the sweep and return its folder. The same seed gives the same runs."""
    rng = np.random.default_rng(seed)
    sweep = SweepFolder(root / name)
    points: list[PlannedPoint] = []
    levels = list(world.levels)
    if world.dense:
        for model in dict.fromkeys(level.model for level in levels):
            extra = next(level.extra for level in levels if level.model == model)
            levels.append(Level(model, 16, "dense", 0.9999, 0.99999, extra=extra))
    jobs: list[tuple[PlannedPoint, Callable[[], None]]] = []
    owners: dict[tuple[Any, ...], str] = {}

    def add(stage: str, label: dict[str, Any], needs: dict[str, str], write: Any) -> PlannedPoint:
        config = _config(world, label)
        text = json.dumps([stage, label, needs], sort_keys=True)
        point = PlannedPoint(
            hashlib.sha256(text.encode()).hexdigest()[:16], stage, needs, label, config
        )
        if all(p.id != point.id for p, _ in jobs):
            jobs.append((point, lambda: write(point)))
            points.append(point)
        return point

    for level in levels:
        dense = level.tau == "dense"
        where = {"model": level.model, **dict(level.extra)}
        if not dense:
            where["page_size"] = level.page_size
        needs: dict[str, str] = {}
        if not dense:
            curve = add("calibrate", where, {}, lambda p, lv=level: _write_curve(sweep, p, lv))
            needs = {"calibrate": curve.id}
        label = {**where, "tau": level.tau}
        schedule = add(
            "schedule", label, needs, lambda p, lv=level: _write_schedule(sweep, p, lv, rng)
        )
        chance = world.dense_collapse if dense else world.collapse(level)
        for run_seed in range(world.seeds):
            collapses = bool(rng.random() < chance)

            def train(
                p: PlannedPoint, lv: Level = level, s: int = run_seed, c: bool = collapses
            ) -> None:
                key = (lv.model, lv.page_size, lv.extra, lv.name or lv.tau, s)
                owner = owners.setdefault(key, p.id)
                if owner != p.id:
                    _write_alias(sweep, p, owner)
                else:
                    _write_run(sweep, p, lv, s, c, world, rng)

            run = add("train", {**label, "seed": run_seed}, {"schedule": schedule.id}, train)
            add(
                "evaluate",
                {**label, "seed": run_seed},
                {"train": run.id},
                lambda p, r=run: _write_evaluation(sweep, p, r),
            )
    sweep.write_plan(Plan(name, world.verdict, tuple(points)))
    for _, write in jobs:
        write()
    return sweep


def unfinished(world: World, share: float, seed: int = 0) -> World:
    """The same world, with that share of the runs broken off before their end."""
    rng = np.random.default_rng(seed)
    drawn: dict[tuple[Any, ...], float] = {}

    def stop(level: Level, run_seed: int) -> int | None:
        key = (level.model, level.page_size, level.tau, run_seed)
        broken = drawn.setdefault(key, float(rng.random())) < share
        return world.steps // 2 if broken else None

    return replace(world, stop_at=stop)


def _config(world: World, label: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"name": label["model"]},
        "task": {"name": "pointer_chase"},
        "sparsity": {
            "page_size": label.get("page_size", 16),
            "landmark": "mean",
            "dense_layers": 1,
        },
        "calibrate": {"bin_width": BIN},
        "train": {"steps": world.steps, "evaluate_every": world.evaluate_every},
        "seed": label.get("seed", 0),
    }


def _done(sweep: SweepFolder, point: PlannedPoint, seconds: float, **extra: Any) -> None:
    result = {"stage": point.stage, "attempt": 1, "started": 0.0, "finished": seconds}
    metrics = extra.pop("metrics", {})
    sweep.point(point.id).write_result(
        {**result, "seconds": seconds, "metrics": metrics, "time": {}, "alias_of": None, **extra}
    )


def tail(level: float, length: float, start: float = PROMPT) -> float:
    """p5 at a length, for a budget whose pooled p5 is `level`: it falls with length."""
    return float(np.clip(level - 0.5 * (1 - level) * ((length - start) / CONTEXT - 0.4), 0, 1))


def _statistics(p05: float, mean: float) -> dict[str, float]:
    return {
        "p01": float(np.clip(p05 - 1.5 * (1 - p05), 0, 1)),
        "p05": p05,
        "p10": 1 - 0.55 * (1 - p05),
        "p50": 1 - 0.002 * (1 - p05),
        "mean": mean,
    }


def _write_curve(sweep: SweepFolder, point: PlannedPoint, level: Level) -> None:
    size = level.page_size
    rows: list[dict[str, Any]] = []
    pooled: list[dict[str, Any]] = []
    for trajectory in ("own", "dense"):
        for budget in (*(size * k for k in (6, 8, 12, 16, 24)), CONTEXT + PROMPT):
            found = []
            for start in range(PROMPT, CONTEXT, BIN):
                length = start + BIN / 2
                kept = min(1.0, budget / length) ** (0.5 + 0.1 * np.log2(size))
                value = 0.9995 - 0.75 * (1 - kept) * (1.1 if trajectory == "own" else 1.0)
                prompts = max(4, int(64 * (1 - 0.8 * start / CONTEXT)))
                half = 0.25 * (1 - value) * np.sqrt(16 / prompts)
                found.append(
                    {
                        "trajectory": trajectory,
                        "budget": budget,
                        "bin_start": start,
                        "prompts": prompts,
                        "tokens": prompts * BIN,
                        **_statistics(float(max(value, 0)), 1 - 0.12 * (1 - float(value))),
                        "p05_low": float(max(value - half, 0)),
                        "p05_high": float(min(value + half, 1)),
                        "kv_tokens": float(min(budget, length)),
                    }
                )
            rows += found
            weights = [row["tokens"] for row in found]
            pooled.append(
                {
                    "trajectory": trajectory,
                    "budget": budget,
                    **{
                        k: float(np.average([row[k] for row in found], weights=weights))
                        for k in (
                            "p01",
                            "p05",
                            "p10",
                            "p50",
                            "mean",
                            "p05_low",
                            "p05_high",
                            "kv_tokens",
                        )
                    },
                    "reward": 0.7,
                }
            )
    curve = {
        "schema": 1,
        "page_size": size,
        "bin_width": BIN,
        "context": CONTEXT,
        "ceiling": {"p05": 0.9999, "mean": 0.99999},
        "reserved_tokens": RESERVED_FOR.get(size, 3 * size),
        "rows": rows,
        "pooled": pooled,
        "settings": {"sparsity": {"dense_layers": 1, "landmark": "mean"}},
    }
    sweep.point(point.id).write_bytes("curve.json", json.dumps(curve).encode())
    _done(sweep, point, 20.0)


def _write_schedule(
    sweep: SweepFolder, point: PlannedPoint, level: Level, rng: np.random.Generator
) -> None:
    dense, size = level.tau == "dense", level.page_size
    name = level.name or (f"tau={level.tau:g}" if isinstance(level.tau, float) else str(level.tau))
    first = 6 + round(20 * level.p05**8)
    budgets = [size * (first + k // 2 * max(1, round(6 * level.p05**4))) for k in range(5)]
    edges = [0, 64, 96, 160, 224]
    schedule = (
        Schedule.dense(16, dense_layers=1)
        if dense
        else Schedule(size, tuple(edges), tuple(budgets), dense_layers=1, name=name)
    )
    attended = float(np.mean([min(b, 140) for b in budgets])) if not dense else 140.0
    half = 0.12 * (1 - level.p05) + 1e-4
    by_bin = [
        {
            "bin_start": start,
            "prompts": 64,
            "tokens": 2048,
            "p05": float(np.clip(level.p05 + 0.2 * (1 - level.p05) * rng.standard_normal(), 0, 1)),
            "mean": level.mean,
            "p05_low": max(0.0, level.p05 - 2 * half),
            "p05_high": min(1.0, level.p05 + 2 * half),
        }
        for start in range(PROMPT, CONTEXT, BIN)
    ]
    data = schedule.to_json() | {
        "model": level.model,
        "name": (level.name and point.short()) or name,
        "tau": level.tau if isinstance(level.tau, float) else None,
        "measured": {
            "prompts": 64,
            "tokens": 2048 * len(by_bin),
            **_statistics(level.p05, level.mean),
            "p05_low": max(0.0, level.p05 - half),
            "p05_high": min(1.0, level.p05 + half),
            "ceiling_p05": 0.9999,
            "by_bin": by_bin,
            "kv_tokens_mean": attended,
        },
    }
    if level.name:
        data["name"] = f"tau={level.tau:g}" if isinstance(level.tau, float) else str(level.tau)
        data["digest"] = hashlib.sha256(level.name.encode()).hexdigest()
    else:
        data["digest"] = hashlib.sha256(f"{size}{level.tau}{level.p05}".encode()).hexdigest()
    sweep.point(point.id).write_bytes("schedule.json", json.dumps(data).encode())
    _done(sweep, point, 5.0)


def evaluations(
    steps: Sequence[int], last: int, collapses: bool, rng: np.random.Generator
) -> list[float]:
    """Reward of the dense policy: it learns; a collapse sets in half way and stays."""
    when = last * rng.uniform(0.35, 0.7)
    top = rng.uniform(0.9, 0.97)
    values = []
    for step in steps:
        value = 0.7 + (top - 0.7) * min(1, 2.5 * step / last)
        if collapses and step > when:
            value = max(0.12, value - 6 * (step - when) / last)
        values.append(float(np.clip(value + 0.015 * rng.standard_normal(), 0, 1)))
    return values


def _write_run(
    sweep: SweepFolder,
    point: PlannedPoint,
    level: Level,
    seed: int,
    collapses: bool,
    world: World,
    rng: np.random.Generator,
) -> None:
    folder = sweep.point(point.id)
    attempt = folder.new_attempt(OWNER)
    at = [s for s in range(world.steps + 1) if s % world.evaluate_every == 0 or s == world.steps]
    values = dict(zip(at, evaluations(at, world.steps, collapses, rng), strict=True))
    stop, bad = world.stop_at(level, seed), world.nan_from(level, seed)
    hidden = rng.random() < 0.4  # rollout reward may stay high over a ruined policy
    cost = 0.5 + level.p05
    with EventWriter(attempt) as events:
        for step in range((world.steps if stop is None else stop) + 1):
            done = step / world.steps
            metrics: dict[str, float] = {}
            if step in values:
                value = values[step] if bad is None or step < bad else float("nan")
                metrics |= {"evaluate/reward": value, "evaluate/length_mean": 20.0}
                metrics["time/evaluate_s"] = 0.4
            if step < world.steps:
                fallen = collapses and done > 0.5
                p05 = level.p05 * (0.3 if fallen else 1) + 0.01 * rng.standard_normal()
                reward = 0.6 + 0.3 * done - (0.5 if fallen and not hidden else 0)
                metrics |= {
                    "reward/mean": float(reward + 0.03 * rng.standard_normal()),
                    "acceptance/p05": float(np.clip(p05, 0, 1)),
                    "acceptance/mean": level.mean - (0.05 if fallen else 0),
                    "acceptance/bin_32/p05": float(np.clip(p05 + 0.02, 0, 1)),
                    "acceptance/bin_32/mean": level.mean,
                    "acceptance/bin_32/tokens": 500.0,
                    "response/length_mean": 20.0 - (12 if fallen else 0),
                    "policy/entropy": 0.14 + (0.2 if fallen else 0),
                    "time/rollout_s": 0.4 * cost,
                    "time/train_s": 0.3,
                    "time/step_s": 0.3 + 0.4 * cost,
                }
            events.write(step, metrics)
    if stop is not None:
        attempt.write_failure("interrupted", f"asked to stop after step {stop}")
        return
    compact(attempt)
    steps = world.steps
    time = {"rollout_s": 0.4 * cost * steps, "train_s": 0.3 * steps, "evaluate_s": 0.4 * len(at)}
    metrics = {"evaluate/reward": values[steps] if bad is None else float("nan")}
    _done(sweep, point, sum(time.values()) + 3, metrics=metrics, time=time)


def _write_alias(sweep: SweepFolder, point: PlannedPoint, owner: str) -> None:
    result = sweep.point(owner).read_result() or {}
    if result:
        sweep.point(point.id).write_result(
            {**result, "seconds": 0.0, "time": {}, "alias_of": owner}
        )


def _write_evaluation(sweep: SweepFolder, point: PlannedPoint, run: PlannedPoint) -> None:
    result = sweep.point(run.id).read_result()
    if result is not None:
        value = result["metrics"]["evaluate/reward"]
        _done(sweep, point, 2.0, metrics={"evaluate/reward": value})


__all__ = ["DENSE", "Level", "World", "ladder", "step_at", "unfinished", "write_sweep"]
