"""A sweep as its workers would leave it, written through the run folder's own API.

The numbers are invented but shaped like real ones: acceptance with a heavy tail that falls
with length, a run that learns, and one that collapses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparrow_lab.acceptance.histogram import AcceptanceHistogram
from sparrow_lab.config.schema import PointConfig
from sparrow_lab.runs import events, histograms
from sparrow_lab.runs.atomic import write_json, write_text
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import PointFolder, SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.runs.process import this_process

BIN = 16
PROMPT, CONTEXT = 68, 180
DEAD = {"host": "elsewhere", "pid": 1, "start": 0.0}
"""A worker of another host."""


def label(tau: float | str, seed: int = 0, page: int = 8) -> dict[str, Any]:
    return {"model": "tiny-s", "page_size": page, "tau": tau, "seed": seed}


def config(tau: float | str, steps: int = 40, seed: int = 0, page: int = 8) -> dict[str, Any]:
    schedule = {"tau": tau} if isinstance(tau, float) else {"dense": True}
    raw = {"sparsity": {"page_size": page, "schedule": schedule}, "train": {"steps": steps}}
    return PointConfig.model_validate({**raw, "seed": seed}).model_dump(mode="json")


def make_plan(name: str, taus: Iterable[float | str], steps: int = 40, seeds: int = 1) -> Plan:
    """calibrate -> schedule -> train -> evaluate for each tau; ids are readable, not hashes."""
    points = [
        PlannedPoint("cal0", "calibrate", {}, {"model": "tiny-s", "page_size": 8}, config(0.9))
    ]
    for tau in taus:
        needs = {"calibrate": "cal0"} if isinstance(tau, float) else {}
        points.append(PlannedPoint(f"sch-{tau}", "schedule", needs, label(tau), config(tau)))
        for seed in range(seeds):
            what = (label(tau, seed), config(tau, steps, seed))
            train = PlannedPoint(f"tra-{tau}-{seed}", "train", {"schedule": f"sch-{tau}"}, *what)
            final = PlannedPoint(f"eva-{tau}-{seed}", "evaluate", {"train": train.id}, *what)
            points += [train, final]
    return Plan(name, {"metric": "evaluate/reward"}, tuple(points))


def make_sweep(root: Path, plan: Plan, tracking: str = "") -> SweepFolder:
    sweep = SweepFolder(root / plan.name)
    sweep.write_plan(plan)
    write_text(sweep.source_path, f"name: {plan.name}\n{tracking}")
    Ledger(sweep.ledger_path).append("planned")
    return sweep


def claim(folder: PointFolder, owner: Mapping[str, Any] | None = None) -> AttemptFolder:
    """A new attempt, by default of this living process."""
    process = this_process() if owner is None else {**owner, "time": time.time()}
    attempt = folder.new_attempt(process)
    attempt.log_path.write_text("step 1/40 reward 0.5\nstep 2/40 reward 0.6\n")
    return attempt


def histogram(step: int, hardness: float, tokens: int = 4000) -> AcceptanceHistogram:
    rng = np.random.default_rng(step)
    lengths = rng.integers(PROMPT, rng.integers(PROMPT + 20, CONTEXT, tokens))
    easy = rng.random(tokens) < 0.7
    tail = rng.gamma(0.6, hardness * (0.4 + lengths / CONTEXT), tokens)
    gap = np.where(easy, 10 ** rng.uniform(-7, -3, tokens), np.clip(tail, 0, 1))
    return AcceptanceHistogram.empty(BIN, ceiling_p05=0.9999).add(
        lengths, 1 - gap, rng.integers(0, 64, tokens)
    )


def metrics(
    step: int, h: AcceptanceHistogram, collapse: bool, attempt: int = 1
) -> dict[str, float]:
    """One step's metrics; the attempt shows in `policy/loss`, to tell who measured a step."""
    fall = 1 / (1 + math.exp((step - 24) / 2)) if collapse else 1.0
    reward = (0.25 + 0.7 * (1 - math.exp(-step / 12))) * fall + 0.05 * (1 - fall)
    values = {
        "reward/mean": reward,
        "reward/right": reward,
        "reward/unparsable": 0.1 * (1 - fall),
        "response/length_mean": 22 * fall + 4,
        "policy/entropy": 0.15 + 0.3 * (1 - fall),
        "policy/loss": attempt + step / 1000,
        "policy/grad_norm": math.inf if collapse and step > 34 else 0.4 + (1 - fall),
        "policy/kl_rollout": math.nan if collapse and step == 38 else 0.01,
        "rollout/tokens_per_s": 5000.0,
        "time/rollout_s": 1.5,
        "detector/collapsed": float(fall < 0.5),
        "acceptance/mean": h.mean(),
    }
    values |= {f"acceptance/p{q:02d}": h.percentile(q / 100) for q in (1, 5, 10, 50)}
    for i, start in enumerate(h.bin_starts()):
        if h.tokens(i):
            values[f"acceptance/bin_{start}/p05"] = h.percentile(0.05, i)
            values[f"acceptance/bin_{start}/tokens"] = float(h.tokens(i))
    if step % 10 == 0:
        values["evaluate/reward"] = reward
    return values


def write_steps(
    attempt: AttemptFolder, steps: Iterable[int], collapse: bool = False, flush_every: int = 5
) -> None:
    """Events and histogram parts of some training steps."""
    parts = histograms.HistogramWriter(attempt)
    with events.EventWriter(attempt) as writer:
        step = 0
        for step in steps:
            h = histogram(step, 0.05 + (0.01 * step if collapse else 0.0005 * step))
            writer.write(step, metrics(step, h, collapse, attempt.number))
            parts.add(step, h)
            if (step + 1) % flush_every == 0:
                parts.flush(step)
        parts.flush(step)


def finish(folder: PointFolder, attempt: AttemptFolder, given: Mapping[str, Any]) -> None:
    """End a stage as the worker does."""
    events.compact(attempt)
    histograms.compact(attempt)
    now = time.time()
    folder.write_result(
        {
            "stage": folder.read_point().stage,
            "attempt": attempt.number,
            "started": now - 60,
            "finished": now,
            "seconds": 60.0,
            "metrics": {},
            "time": {},
            "alias_of": None,
            **given,
        }
    )


def finish_train(folder: PointFolder, attempt: AttemptFolder) -> None:
    last: dict[str, float] = {}
    for row in events.read_events(folder).rows:
        last.update(row[3])
    last["evaluate/peak"] = 0.93
    finish(folder, attempt, {"metrics": last, "time": {"rollout_s": 60.0}, "schedule_digest": "d"})


def run_calibrate(folder: PointFolder) -> None:
    attempt = claim(folder)
    budgets = [32, 48, 64, 96, 128, 192]
    pooled = [
        {
            "trajectory": way,
            "budget": b,
            "p01": 0.3 + i / 10,
            "p05": 0.5 + i / 12,
            "p10": 0.6 + i / 15,
            "p50": 0.999,
            "mean": 0.9 + i / 60,
            "p05_low": 0.48 + i / 12,
            "p05_high": 0.52 + i / 12,
            "reward": 0.2 + i / 10,
            "kv_tokens": b * 0.9,
        }
        for way in ("own", "dense")
        for i, b in enumerate(budgets)
    ]
    write_json(folder.path / "curve.json", {"schema": 1, "rows": [], "pooled": pooled})
    finish(folder, attempt, {"metrics": {"acceptance/ceiling_p05": 0.9999}})


def run_schedule(folder: PointFolder, tau: float | str) -> None:
    attempt = claim(folder)
    bins = [
        {"bin_start": s, "prompts": 60, "tokens": 900, "p05": 0.9 - s / 2000, "mean": 0.98}
        for s in range(64, 180, BIN)
    ]
    budgets = [64, 96, 128] if isinstance(tau, float) else [2**31 - 1]
    schedule = {
        "schema": 1,
        "page_size": 8,
        "edges": [0, 96, 144][: len(budgets)],
        "budgets": budgets,
        "tau": tau if isinstance(tau, float) else None,
        "measured": {"p05": 0.87, "by_bin": bins},
        "digest": "d",
    }
    write_json(folder.path / "schedule.json", schedule)
    finish(folder, attempt, {"metrics": {"acceptance/p05": 0.87, "acceptance/mean": 0.98}})


def run_train(folder: PointFolder, steps: int = 40, collapse: bool = False) -> None:
    attempt = claim(folder)
    write_steps(attempt, range(steps), collapse)
    finish_train(folder, attempt)


def run_evaluate(folder: PointFolder) -> None:
    finish(
        folder, claim(folder), {"metrics": {"evaluate/reward": 0.9}, "time": {"evaluate_s": 2.0}}
    )


def run_alias(folder: PointFolder, owner: PointFolder) -> None:
    """What the worker writes for a run that is another one by another name."""
    result = owner.read_result()
    assert result is not None
    now = time.time()
    told = {"attempt": 0, "started": now, "finished": now, "seconds": 0.0, "time": {}}
    folder.write_result({**result, **told, "alias_of": owner.id})


def run_all(sweep: SweepFolder, collapse: Iterable[float | str] = (), steps: int = 40) -> None:
    """Every task, done; training collapses for the taus in `collapse`."""
    bad = set(collapse)
    for point in sweep.read_plan().points:
        folder = sweep.point(point.id)
        tau = point.label.get("tau", "dense")
        match point.stage:
            case "calibrate":
                run_calibrate(folder)
            case "schedule":
                run_schedule(folder, tau)
            case "train":
                run_train(folder, steps, tau in bad)
            case _:
                run_evaluate(folder)


def same(value: float, other: float) -> bool:
    return value == pytest.approx(other, rel=1e-12)
