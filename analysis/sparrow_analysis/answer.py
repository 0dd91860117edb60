"""Everything that a sweep says, in one go: what the report and the notebook show."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from sparrow_analysis.cheapest import Choice, choices
from sparrow_analysis.frames import SweepFrames
from sparrow_analysis.one_for_all import OneForAll, one_for_all
from sparrow_analysis.predictors import Predictors, compare_predictors
from sparrow_analysis.threshold import Threshold, find_threshold
from sparrow_analysis.verdicts import DECIDED, verdicts

ALPHA = 0.05


@dataclass(frozen=True)
class Answer:
    """The findings.

    Attributes:
        runs: `frames.runs` with verdicts.
        threshold: in p5, over all settings together.
        by_setting: the same within each setting (group), in order of the runs.
        tests: whether one threshold serves all settings, models and page sizes.
        mean: the threshold in the mean, beside that in p5.
        predictors: which statistic predicts best.
        choices: the cheapest measured schedules that reach it; empty without a threshold.
        what_if: the threshold under other readings of the same runs, by a sentence each.
    """

    frames: SweepFrames
    runs: pd.DataFrame
    threshold: Threshold
    by_setting: dict[str, Threshold]
    tests: tuple[OneForAll, ...]
    mean: Threshold
    predictors: Predictors
    choices: tuple[Choice, ...] = ()
    what_if: dict[str, Threshold] = field(default_factory=dict)

    @property
    def differs(self) -> bool:
        """Whether settings end differently at the same p5, beyond chance."""
        return _differs(self.threshold, self.tests)


def answer(frames: SweepFrames) -> Answer:
    """Apply every function of the package to a sweep. Seeded: the same frames, the same answer."""
    runs = verdicts(frames)
    found = find_threshold(runs)
    settings = list(dict.fromkeys(runs.loc[~runs["dense"], "group"]))
    by_setting = {}
    if len(settings) > 1:
        for setting in settings:
            mine = runs["group"].eq(setting)
            controls = runs["dense"] & runs["controls"].isin(runs.loc[mine, "controls"])
            by_setting[setting] = find_threshold(runs[mine | controls])
    tests = _tests(runs)
    own = by_setting if _differs(found, tests) else None
    return Answer(
        frames=frames,
        runs=runs,
        threshold=found,
        by_setting=by_setting,
        tests=tests,
        mean=find_threshold(runs, "mean"),
        predictors=compare_predictors(runs),
        choices=choices(runs, found, own),
        what_if=_what_if(runs, found),
    )


def _differs(found: Threshold, tests: tuple[OneForAll, ...]) -> bool:
    unusable = found.reason in ("no_runs", "too_few", "control_collapsed")
    return not unusable and any(t.p < ALPHA for t in tests)


def _tests(runs: pd.DataFrame) -> tuple[OneForAll, ...]:
    """One test a way to part the sparse runs; ways that part them alike are asked once."""
    sparse = runs[~runs["dense"]]
    made: list[OneForAll] = []
    seen: set[tuple[int, ...]] = set()
    for by in ("group", "model", "page_size"):
        parting = tuple(int(x) for x in pd.factorize(sparse[by])[0])
        if sparse[by].nunique() > 1 and parting not in seen:
            seen.add(parting)
            made.append(one_for_all(runs, by))
    return tuple(made)


def _what_if(runs: pd.DataFrame, found: Threshold) -> dict[str, Threshold]:
    """Readings that someone else might prefer, where they would change a run's outcome."""
    made: dict[str, Threshold] = {}
    if found.stagnated:
        verdict = runs["verdict"].replace("stagnated", "collapsed")
        made["stagnated runs count as collapsed"] = find_threshold(runs.assign(verdict=verdict))
    if found.censored_down:
        down = runs["verdict"].eq("censored") & runs["down"]
        verdict = runs["verdict"].mask(down, "collapsed")
        text = "runs that ended early while they were down count as collapsed"
        made[text] = find_threshold(runs.assign(verdict=verdict))
    if found.came_back:
        back = runs["verdict"].isin(DECIDED) & runs["came_back"] & ~runs["dense"]
        verdict = runs["verdict"].mask(back, "collapsed")
        text = "runs that fell as the rule says and came back count as collapsed"
        made[text] = find_threshold(runs.assign(verdict=verdict))
    return made
