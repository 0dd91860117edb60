"""The tables of the report, and the files that other programs read."""

from __future__ import annotations

import json
import math
from typing import Any

import pandas as pd

from sparrow_analysis import wording
from sparrow_analysis.answer import Answer
from sparrow_analysis.cheapest import Cheapest, Choice
from sparrow_analysis.cost_wording import cheapest_line
from sparrow_analysis.frames import records
from sparrow_analysis.pareto import budget_front, run_front, volumes
from sparrow_analysis.verdicts import KINDS


def run_rows(found: Answer) -> list[dict[str, str]]:
    """Every run with its verdict and evidence, by setting and rising p5; texts only."""
    runs = found.runs.sort_values(["dense", "group", "p05", "seed"], kind="stable")
    return [
        {
            "setting": str(row["group"]) or "–",
            "schedule": str(row["names"]),
            "seed": "–" if pd.isna(row["seed"]) else str(row["seed"]),
            "p05": _interval(row["p05"], row["p05_low"], row["p05_high"]),
            "mean": _number(row["mean"], 3),
            "verdict": str(row["verdict"]),
            "meaning": KINDS.get(row["verdict"], ""),
            "evidence": str(row["evidence"]),
            "final": _number(row["final_reward"], 2),
            "run": str(row["run"]),
        }
        for row in records(runs)
    ]


def setting_rows(found: Answer) -> list[dict[str, str]]:
    """The threshold within each setting; empty when there is one setting only."""
    return [
        {
            "setting": name,
            "runs": str(t.runs),
            "collapsed": str(t.collapsed),
            "range": f"{t.lowest:.3f}–{t.highest:.3f}" if t.runs else "–",
            "answer": wording.threshold_headline(t),
        }
        for name, t in found.by_setting.items()
    ]


def state_rows(found: Answer) -> list[dict[str, Any]]:
    """By stage, how many points are done and how many are not, and in what state."""
    tasks = found.frames.tasks
    rows: list[dict[str, Any]] = []
    for stage, mine in tasks.groupby("stage", sort=False):
        states = mine["state"].value_counts()
        others = {str(k): int(v) for k, v in states.items() if k != "done"}
        rows.append(
            {
                "stage": str(stage),
                "done": int(states.get("done", 0)),
                "all": len(mine),
                "aliases": int(mine["alias_of"].ne("").sum()),
                "others": ", ".join(f"{n} {state}" for state, n in others.items()),
            }
        )
    return rows


def failures(found: Answer, most: int = 8) -> list[str]:
    """Points that failed, with the reason; the first few."""
    tasks = found.frames.tasks
    failed = tasks[tasks["state"].eq("failed")]
    lines = [
        f"{row['stage']} {row['name']}: {row['reason'] or 'no reason recorded'}"
        for row in records(failed.head(most))
    ]
    if len(failed) > most:
        lines.append(f"and {len(failed) - most} more; see sparrow-lab status")
    return lines


def same_runs(found: Answer) -> list[str]:
    """Levels that came out as one schedule: one run with several names."""
    several = found.runs[found.runs["names"].str.contains(" = ", regex=False)]
    made = several.groupby(["group", "names"], sort=False).size()
    return [f"{group}: {names}" for group, names in made.index]


def threshold_json(found: Answer) -> str:
    """`threshold.json`: all numbers behind the answer; what is not finite is null."""
    data = {
        "schema": 1,
        "sweep": found.frames.name,
        "headline": wording.headline(found),
        "left_out": found.frames.left_out,
        "differs": found.differs,
        "verdict": found.frames.rule.model_dump(),
        "threshold": found.threshold.to_json(),
        "cheapest_line": cheapest_line(found.choices),
        "cheapest": [_choice(c) for c in found.choices],
        "mean": found.mean.to_json(),
        "by_setting": {k: t.to_json() for k, t in found.by_setting.items()},
        "one_for_all": [_plain(vars(t)) for t in found.tests],
        "what_if": {k: t.to_json() for k, t in found.what_if.items()},
        "predictors": {
            "conclusion": found.predictors.conclusion,
            "better": list(found.predictors.better),
            "tied": list(found.predictors.tied),
            "table": [_plain(r) for r in records(found.predictors.table)],
        },
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _choice(choice: Choice) -> dict[str, Any]:
    return _plain(
        {k: v.to_json() if isinstance(v, Cheapest) else v for k, v in vars(choice).items()}
    )


def pareto_csv(found: Answer) -> str:
    """`pareto.csv`: budgets before training and trained schedules, with cost and quality."""
    budgets = budget_front(found.frames.pooled).assign(kind="budget")
    runs = run_front(found.runs).assign(kind="run")
    parts = [p for p in (budgets, runs) if len(p)]
    both = pd.concat(parts, ignore_index=True) if parts else budgets
    first = ["kind", "model", "page_size", "cost", "unit", "quality", "low", "high", "on_front"]
    return both[[*first, *(c for c in both.columns if c not in first)]].to_csv(index=False)


def runs_csv(found: Answer) -> str:
    """`runs.csv`: every run with its predictors and its verdict."""
    return found.runs.to_csv(index=False)


def volume_rows(front: pd.DataFrame) -> list[dict[str, str]]:
    """Hypervolume by model and page size, as text."""
    return [
        {"model": str(r["model"]), "page": str(r["page_size"]), "volume": _number(r["volume"], 3)}
        for r in records(volumes(front))
    ]


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    return {
        str(k): None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()
    }


def _number(value: Any, digits: int) -> str:
    return "–" if pd.isna(value) else f"{float(value):.{digits}f}"


def _interval(value: Any, low: Any, high: Any) -> str:
    if pd.isna(value):
        return "–"
    ends = "" if pd.isna(low) or pd.isna(high) else f" ({float(low):.3f}–{float(high):.3f})"
    return f"{float(value):.3f}{ends}"
