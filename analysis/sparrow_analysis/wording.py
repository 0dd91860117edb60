"""Findings as sentences. They say no more than the numbers do, and name what is missing."""

from __future__ import annotations

import math

import pandas as pd

from sparrow_analysis.answer import Answer
from sparrow_analysis.cost_wording import NOTHING, cheapest_sentences
from sparrow_analysis.frames import STATISTIC_NAMES
from sparrow_analysis.one_for_all import OneForAll
from sparrow_analysis.predictors import Predictors
from sparrow_analysis.threshold import MIN_RUNS, Threshold

_BY = {"group": "settings", "model": "models", "page_size": "page sizes"}


def headline(found: Answer) -> str:
    """The answer in one line."""
    if found.runs.empty:
        if found.frames.tasks["stage"].eq("train").any():
            return "Not enough runs to say: the files of every run are damaged"
        return "Curves only: this sweep trains nothing, so it cannot have a threshold"
    if found.differs:
        return "No single threshold: at the same p5, some settings collapse and others do not"
    return threshold_headline(found.threshold)


def details(found: Answer) -> list[str]:
    """What the headline rests on, and how far it carries, a sentence each."""
    missing = len(found.frames.left_out)
    be = _plural(missing, "is", "are")
    damaged = [f"{missing} damaged {_plural(missing, 'point')} {be} left out."] if missing else []
    if found.runs.empty:
        needed = "Train points are needed for a threshold; curves and schedules are below."
        return [needed, *damaged, NOTHING]
    lines = threshold_details(found.threshold)
    tests = one_for_all_sentences(found.tests)
    rest = [*damaged, *cheapest_sentences(found.choices)]
    if not found.differs:
        return [*lines, *tests, *rest]
    each = [f"{name}: {threshold_headline(t)}." for name, t in found.by_setting.items()]
    dips = [_dipped(found.threshold)] if found.threshold.dipped else []
    return [lines[0], *tests, *each, *dips, lines[-1], *rest]


def threshold_headline(t: Threshold) -> str:
    """One line on a threshold, or on why there is none."""
    name = STATISTIC_NAMES.get(t.statistic, t.statistic)
    if t.kind == "threshold":
        tried = "" if math.isnan(t.gap_low) else f"; {gap_text(t)}"
        return f"Collapse threshold: {name} = {value_text(t)} ({interval_text(t)}{tried})"
    reasons = {
        "no_runs": "Not enough runs to say: no sparse run has a verdict yet",
        "too_few": f"Not enough runs to say: {t.runs} sparse {_runs(t.runs)} with a verdict",
        "few_schedules": f"Not enough schedules to say whether collapse goes with {name}",
        "one_level": "Not enough runs to say: only one level of sparsity was tried",
        "all_stable": f"No threshold: none of {t.runs} sparse runs collapsed",
        "all_collapsed": f"No threshold: all of {t.runs} sparse runs collapsed",
        "control_collapsed": (
            f"No threshold: the dense control collapsed too, in {t.controls_collapsed} of "
            f"{t.controls} runs"
        ),
        "confounded": f"Not enough runs to say: {name} cannot be told from the other settings",
        "no_relation": f"No threshold: collapse does not go with {name}",
        "not_located": "Not enough runs to say: the interval covers every level that was tried",
    }
    return reasons[t.reason]


def threshold_details(t: Threshold) -> list[str]:
    """What the headline rests on, and how far it carries."""
    name = STATISTIC_NAMES.get(t.statistic, t.statistic)
    lines: list[str] = []
    if t.runs:
        lines.append(
            f"{t.collapsed} of {t.runs} sparse {_runs(t.runs)} with a verdict collapsed; "
            f"{t.levels} {_plural(t.levels, 'schedule')} of {t.settings} "
            f"{_plural(t.settings, 'setting')}, {name} {_range(t.lowest, t.highest)}."
        )
    if t.kind == "threshold":
        lines.append(_edge(t, name))
        lines.append(_test(t, name))
    lines += _why(t, name)
    if t.stagnated:
        lines.append(
            f"{t.stagnated} {_runs(t.stagnated)} stagnated (ended no higher than "
            f"{_plural(t.stagnated, 'it', 'they')} began); counted as not collapsed."
        )
    if t.dipped:
        lines.append(_dipped(t))
    if t.censored:
        lines.append(
            f"{t.censored} {_runs(t.censored)} ended early and {_plural(t.censored, 'is', 'are')} "
            f"left out as censored, {t.censored_down} of them while down."
        )
    if t.undecided:
        lines.append(
            f"{t.undecided} more {_runs(t.undecided)} without a verdict or a measured schedule."
        )
    lines.append(_controls(t))
    return lines


def _edge(t: Threshold, name: str) -> str:
    text = (
        f"Highest {name} of a run that collapsed: {t.highest_collapsed:.3f}; lowest of one that "
        f"did not: {t.lowest_stable:.3f}."
    )
    if t.highest_collapsed < t.lowest_stable:
        return text + " They do not overlap."
    return (
        text + " They overlap: the threshold is where half of the runs collapse, not a safe value."
    )


def _dipped(t: Threshold) -> str:
    """On runs that fell in between: where they end up hangs on where training stops."""
    text = (
        f"{t.dipped} {_runs(t.dipped)} that did not collapse had an evaluation below the rule's "
        "line in between"
    )
    if not t.came_back:
        return f"{text}, none for long enough to count as collapsed at the time."
    rest = "" if t.came_back == t.dipped else f", {t.came_back} of them"
    return (
        f"{text}{rest} for long enough to count as collapsed had training ended then: the "
        "threshold depends on the last step."
    )


def _test(t: Threshold, name: str) -> str:
    if t.unit == "schedule":
        return (
            f"Collapse goes with low {name} within settings ({p_text(t.p)}; whole schedules "
            "shuffled, since seeds of one schedule share their initial policy)."
        )
    return (
        f"Collapse goes with low {name} within settings ({p_text(t.p)}; single runs shuffled). "
        "With so few schedules this takes the seeds of one schedule for independent: treat it as "
        "provisional."
    )


def _why(t: Threshold, name: str) -> list[str]:
    match t.reason:
        case "too_few" if t.runs < MIN_RUNS:
            return [f"At least {MIN_RUNS} are needed, at two or more levels of sparsity."]
        case "too_few":
            return [
                "Even perfect order could not have shown in so few (least possible p = "
                f"{t.attainable:.2f}): more levels or more seeds are needed."
            ]
        case "few_schedules":
            return [
                f"Runs collapse more at low {name} ({p_text(t.p_runs)} if seeds were independent), "
                f"but so few schedules could be in this order by chance ({p_text(t.p)})."
            ]
        case "all_stable":
            return [
                f"If there is a threshold, it lies below {name} = {t.lowest:.3f}; try lower levels."
            ]
        case "all_collapsed":
            return [
                f"If there is a threshold, it lies above {name} = {t.highest:.3f}; try higher "
                "levels, or look for another cause (page size, learning rate)."
            ]
        case "control_collapsed":
            return ["So collapse here cannot be put down to sparsity; change the recipe first."]
        case "confounded":
            return [
                "No setting (model, page size, ...) saw both outcomes at two or more levels, so "
                "the setting itself explains as much."
            ]
        case "no_relation":
            return [
                f"Within settings, low {name} does not go with collapse beyond chance "
                f"({p_text(t.p)}; {t.unit}s shuffled)."
            ]
        case "not_located":
            return ["Collapse does go with it, but the levels tried do not say where it sets in."]
    return []


def _controls(t: Threshold) -> str:
    if not t.controls:
        return "No dense control has a verdict, so nothing shows that collapse is due to sparsity."
    stable = t.controls - t.controls_collapsed
    return f"Dense control: {stable} of {t.controls} runs did not collapse."


def one_for_all_sentences(tests: tuple[OneForAll, ...]) -> list[str]:
    """On one threshold for all settings, models and page sizes."""
    lines = [
        f"One threshold does not serve all {t.parts} {_BY.get(t.by, t.by)} ({p_text(t.p)})."
        for t in tests
        if t.p < 0.05
    ]
    passed = [t for t in tests if t.p >= 0.05]
    if passed:
        parts = _list([f"{t.parts} {_BY.get(t.by, t.by)} ({p_text(t.p)})" for t in passed])
        lines.append(
            f"Nothing speaks against one threshold for all {parts}; that is no proof that it is "
            "one."
        )
        if any(t.attainable > 0.02 for t in passed):
            lines.append("With so few schedules, a difference could hardly have shown.")
    silent = [_BY.get(t.by, t.by) for t in tests if math.isnan(t.p)]
    if silent:
        lines.append(f"One threshold for all {_list(silent)}? Not enough schedules each to test.")
    return lines


def predictor_sentences(found: Predictors) -> list[str]:
    """On 'p5 predicts best', a hypothesis that may fail."""
    if found.conclusion == "not_enough":
        return [
            "Which statistic predicts best cannot be said yet: both outcomes and more runs are "
            "needed."
        ]
    scores = found.table.set_index("statistic")["auc"]
    named = {n: f"{STATISTIC_NAMES.get(n, n)} (AUC {scores[n]:.2f})" for n in scores.index}
    mine = named["p05"]
    if found.conclusion == "supported":
        first = f"{mine} predicts collapse better than every other statistic here, beyond chance."
    elif found.conclusion == "refuted":
        first = (
            f"p5 is not the best predictor here: {_list([named[n] for n in found.better])} "
            f"{_plural(len(found.better), 'is', 'are')} ahead of {mine} beyond chance."
        )
    else:
        first = (
            f"{mine} cannot be told from {_list([named[n] for n in found.tied])}: these runs "
            "neither support nor refute that p5 is the statistic to watch."
        )
    lines = [first]
    ends = found.table.set_index("statistic").drop(index="p05")
    alike = ends[["less_than_p05_low", "less_than_p05_high"]].abs().max(axis=1).eq(0)
    if alike.any():
        same = _list([STATISTIC_NAMES.get(n, n) for n in ends.index[alike]])
        lines.append(
            f"These schedules rank alike by p5 and by {same}: more seeds will not part them, other "
            "settings may."
        )
    if (scores < 0.5).any():
        wrong = _list([STATISTIC_NAMES.get(n, n) for n in scores.index[scores < 0.5]])
        lines.append(f"Below 0.5, collapse goes with high values: {wrong}.")
    ends = found.table.loc[found.table["auc"].ge(1), ["auc_low", "auc_high"]]
    if len(ends) and ends["auc_low"].ge(1).any():
        lines.append(
            "An interval of no width means only that no run was out of order: with "
            f"{found.schedules} schedules that can be luck."
        )
    return lines


def scope(frame: pd.DataFrame) -> str:
    """What the answer is about, and nothing else."""
    if frame.empty:
        return ""
    models = _list(list(dict.fromkeys(frame["model"])))
    sizes = [str(int(s)) for s in sorted(frame["page_size"].dropna().unique())]
    tasks = _list([t for t in dict.fromkeys(frame["task"]) if t])
    pages = f", page {_plural(len(sizes), 'size', 'sizes')} {_list(sizes)}" if sizes else ""
    on = f" on {tasks}" if tasks else ""
    return f"This is about {models}{pages}{on}, with this recipe; it says nothing about other ones."


def value_text(t: Threshold) -> str:
    """The threshold, to as many digits as its interval warrants."""
    return f"{t.value:.{_digits(t)}f}"


def interval_text(t: Threshold) -> str:
    """Its interval; an end that the levels do not bound is said to be open."""
    share, digits = f"{t.confidence:.0%}".replace("%", " %"), _digits(t)
    if math.isinf(t.low):
        return f"{share} interval up to {t.high:.{digits}f}; the levels tried leave it open below"
    if math.isinf(t.high):
        return f"{share} interval from {t.low:.{digits}f}; the levels tried leave it open above"
    return f"{share} interval {t.low:.{digits}f} to {t.high:.{digits}f}"


def gap_text(t: Threshold) -> str:
    """What was not tried around the threshold; call it only where there is such a gap."""
    name, digits = STATISTIC_NAMES.get(t.statistic, t.statistic), _digits(t)
    return f"no run lies between {name} {t.gap_low:.{digits}f} and {t.gap_high:.{digits}f}"


def p_text(p: float) -> str:
    """`p = 0.03`, `p < 0.001`."""
    if math.isnan(p):
        return "no p-value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.01 else f"p = {p:.2f}"


def _range(low: float, high: float) -> str:
    return f"from {low:.3f} to {high:.3f}" if high > low else f"{low:.3f}"


def _digits(t: Threshold) -> int:
    width = t.high - t.low
    return 2 if math.isinf(width) or width >= 0.03 else 3


def _runs(count: int) -> str:
    return "run" if count == 1 else "runs"


def _plural(count: int, one: str, more: str | None = None) -> str:
    return one if count == 1 else (more or one + "s")


def _list(names: list[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else "".join(names)
