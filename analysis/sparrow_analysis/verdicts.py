"""Did a run collapse? The rule of `sparrow_lab.runs.verdict` over all runs of a sweep."""

from __future__ import annotations

import pandas as pd

from sparrow_analysis.frames import SweepFrames
from sparrow_lab.runs.verdict import DECIDED, KINDS, Kind, Verdict, judge

__all__ = ["DECIDED", "KINDS", "Kind", "Verdict", "judge", "verdicts"]


def verdicts(frames: SweepFrames) -> pd.DataFrame:
    """`frames.runs` with the fields of `Verdict` as further columns (`kind` as `verdict`)."""
    by_run = dict(list(frames.evaluations.groupby("run", sort=False)))
    rows: list[dict[str, object]] = []
    for run, finished in zip(frames.runs["run"], frames.runs["finished"], strict=True):
        mine = by_run.get(run)
        steps = [] if mine is None else [int(s) for s in mine["step"]]
        values = [] if mine is None else [float(v) for v in mine["value"]]
        found = judge(steps, values, frames.rule, bool(finished))
        rows.append({**vars(found), "verdict": found.kind})
    columns = ["verdict", *(k for k in Verdict.__dataclass_fields__ if k != "kind")]
    made = pd.DataFrame(rows, columns=columns, index=frames.runs.index)
    for name in ("peak_step", "fell_step", "lowest_step", "evaluations", "nan"):
        made[name] = pd.to_numeric(made[name]).astype("Int64")
    for name in ("start", "peak", "final", "lowest"):
        made[name] = pd.to_numeric(made[name]).astype("float64")
    for name in ("down", "came_back"):
        made[name] = made[name].astype("bool")
    return pd.concat([frames.runs, made], axis=1)
