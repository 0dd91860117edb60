"""The frames of one sweep, and their columns: what every function of this package takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from sparrow_lab.config.schema import VerdictConfig

STATISTICS = ("p01", "p05", "p10", "p50", "mean")
"""Statistics of acceptance of the initial policy: the candidate predictors of collapse."""

STATISTIC_NAMES = {"p01": "p1", "p05": "p5", "p10": "p10", "p50": "median", "mean": "mean"}


@dataclass(frozen=True)
class SweepFrames:
    """What a sweep has measured so far.

    An unfinished sweep has fewer rows, never other columns; every frame may be empty.

    Attributes:
        tasks: one row a planned point: id, stage, name, state (`done`, `failed`, `interrupted`,
            `started`, `planned`, `damaged`), reason, seconds, alias_of.
        runs: one row a training run that is its own (aliases are names of it): run, names, model,
            page_size (NA for dense, which has none), tau (NaN unless it was asked for), schedule,
            level (digest of the schedule), dense, seed, group (model, page size and every other
            swept setting), controls (name of the dense runs it compares to), task, planned_steps,
            last_step, finished, state, the STATISTICS of the initial policy under the final
            schedule with p05_low and p05_high, ceiling_p05, tokens, prompts, kv_tokens, reads,
            eflops, dense_reads and dense_eflops (full attention at the same lengths), speedup
            (modelled, of decoding) on the profile hardware, final_reward, seconds and time_<part>.
        evaluations: run, step, value of the verdict's metric (NaN where it was not finite).
        training: run, step and one column a metric.
        by_length: acceptance during training: run, step, bin_start, p05, mean, tokens.
        curves: rows of calibration curves: curve, model, page_size, trajectory, budget, bin_start,
            bin_width, prompts, tokens, STATISTICS, p05_low, p05_high, kv_tokens, ceiling_p05,
            reads (KV tokens with landmarks, see `expense`), eflops.
        pooled: the same over all lengths, without bins, with reward.
        schedules: one row a schedule point: schedule_id, name, tau, level, dense, model,
            page_size, and its measurement (columns as in `runs`).
        steps: steps of the schedules: schedule_id, name, model, page_size, start, budget
            (NaN for full attention).
        measured: schedules re-measured by length: schedule_id, name, model, page_size, tau,
            bin_start, prompts, tokens, p05, mean, p05_low, p05_high.
        left_out: points that are in no other frame because a file of theirs is damaged: which
            point, which file and what is wrong with it, a line each.
        notes: smaller things that could not be read, for people.
        search: what the search of an adaptive sweep has found so far, in sentences.
    """

    name: str
    path: Path
    rule: VerdictConfig
    tasks: pd.DataFrame
    runs: pd.DataFrame
    evaluations: pd.DataFrame
    training: pd.DataFrame
    by_length: pd.DataFrame
    curves: pd.DataFrame
    pooled: pd.DataFrame
    schedules: pd.DataFrame
    steps: pd.DataFrame
    measured: pd.DataFrame
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    search: list[str] = field(default_factory=list)


def frame(rows: list[dict[str, object]], columns: dict[str, str]) -> pd.DataFrame:
    """A frame of these columns and dtypes, in this order; further keys follow as they come.

    Missing keys are NA; `columns` are there even without a row.
    """
    made = pd.DataFrame(rows)
    for name, kind in columns.items():
        if name not in made:
            made[name] = pd.Series(pd.NA, index=made.index, dtype="object")
        made[name] = _typed(made[name], kind)
    rest = [name for name in made.columns if name not in columns]
    return made[[*columns, *rest]]


def _typed(column: pd.Series, kind: str) -> pd.Series:
    if kind == "float64":
        return pd.to_numeric(column, errors="coerce").astype("float64")
    if kind == "Int64":
        return pd.to_numeric(column, errors="coerce").astype("Float64").round().astype("Int64")
    if kind == "bool":
        return column.map(lambda x: x is True or (not pd.isna(x) and bool(x))).astype("bool")
    return column.map(lambda x: "" if x is None or x is pd.NA else x).astype("object")


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dictionaries by column name."""
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def number(value: object) -> float:
    """A number as it is in JSON: null and text that is no number are NaN, "inf" is infinite."""
    try:
        return float("nan") if value is None else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")
