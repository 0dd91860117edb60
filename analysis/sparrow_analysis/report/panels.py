"""Which figures a report has, and how to read each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from matplotlib.figure import Figure

from sparrow_analysis.answer import Answer
from sparrow_analysis.cost_wording import time_caption
from sparrow_analysis.figures.aim import aim_figure
from sparrow_analysis.figures.curves import curves_figure
from sparrow_analysis.figures.pareto import budgets_figure, runs_figure
from sparrow_analysis.figures.predictors import scores_figure, statistics_figure
from sparrow_analysis.figures.threshold import threshold_figure
from sparrow_analysis.figures.time import time_figure
from sparrow_analysis.figures.training import training_figures
from sparrow_analysis.pareto import budget_front, run_front


@dataclass(frozen=True)
class Panel:
    """A figure: the section it belongs to, the name of its file, what it shows and how."""

    section: str
    name: str
    figure: Figure
    caption: str


def panels(found: Answer) -> Iterator[Panel]:
    """The figures that there are data for, in the order of the report."""
    frames, runs = found.frames, found.runs
    if len(runs):
        yield Panel(
            "threshold",
            "threshold",
            threshold_figure(runs, found.threshold, found.by_setting if found.differs else None),
            "Top: one dot a schedule, larger with more seeds"
            + (
                ". Below: one dot a run, by setting; the boxes are the intervals of those settings "
                "that have a threshold of their own. "
                if found.differs
                else "; the curve is the fitted chance of collapse, the band the interval of the "
                "threshold. Below: one dot a run, by setting. "
            )
            + "Dense runs are controls and take no part in the fit.",
        )
        yield Panel(
            "predictors",
            "predictors",
            statistics_figure(runs),
            "Each statistic of the initial policy, under the run's own schedule, on fresh prompts, "
            "against how the run ended.",
        )
        if len(found.predictors.table):
            yield Panel(
                "predictors",
                "predictor-scores",
                scores_figure(found.predictors),
                "Left: no threshold is fitted. Right: a threshold is chosen on all settings but "
                "one and tried on that one. Bars: 95 % intervals from a bootstrap over schedules.",
            )
    models = dict.fromkeys([*frames.curves["model"], *frames.schedules["model"]])
    for model in models:
        if frames.curves["model"].eq(model).any() or frames.schedules["model"].eq(model).any():
            yield Panel(
                "curves",
                f"curves-{_file_name(model)}",
                curves_figure(frames.curves, frames.steps, frames.schedules, model),
                "Acceptance of the initial policy by length, a line a budget (tokens of KV), on "
                "one scale for the tail and the mean. Late bins of own trajectories hold only what "
                "grew that long; common dense trajectories are the same texts at every budget. "
                "Dotted: the levels of τ aimed at. Bottom: the schedules: budget against length.",
            )
    if len(runs):
        figures = training_figures(frames, runs)
        for i, figure in enumerate(figures, 1):
            yield Panel(
                "training",
                "training" if len(figures) == 1 else f"training-{i}",
                figure,
                "A line a run, coloured by the p5 of its schedule. The first row decides: rollout "
                "reward can stay high over a ruined policy. p5 while training is a symptom: it "
                "falls as a run fails and may climb again after it has collapsed.",
            )
    if frames.schedules["tau"].notna().any():
        yield Panel(
            "aim",
            "aim",
            aim_figure(frames.schedules, frames.measured),
            "Budgets were chosen on calibration prompts and measured again, under the whole "
            "schedule, on prompts that took no part in the choice.",
        )
    value = found.threshold.value if not found.differs else math.nan
    if len(frames.pooled):
        yield Panel(
            "pareto",
            "pareto-budgets",
            budgets_figure(budget_front(frames.pooled), value),
            "Filled marks are on the front of their model. Volume: share of the box between the "
            "dearest, worst point and (0, 1) that a page size dominates. Cost ranks; it does not "
            "predict time.",
        )
    trained = run_front(runs)
    if len(trained):
        yield Panel(
            "pareto",
            "pareto-runs",
            runs_figure(trained),
            "A mark a schedule: the mean over seeds of the final evaluation; bars from the worst "
            "to the best seed.",
        )
    if frames.tasks["seconds"].notna().any():
        yield Panel(
            "time",
            "time",
            time_figure(frames.tasks, runs),
            time_caption(runs),
        )


def _file_name(model: str) -> str:
    return "".join(c if c.isalnum() or c in "-." else "-" for c in model).strip("-.") or "model"
