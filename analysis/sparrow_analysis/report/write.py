"""Put the report together and write it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sparrow_analysis import wording
from sparrow_analysis.answer import Answer, answer
from sparrow_analysis.cost_wording import cheapest_line
from sparrow_analysis.frames import SweepFrames
from sparrow_analysis.pareto import budget_front
from sparrow_analysis.report import tables
from sparrow_analysis.report.panels import Panel, panels
from sparrow_analysis.report.theme import colour_rules, inline_svg, png
from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import write_bytes, write_text

SECTIONS = {
    "threshold": "Threshold",
    "predictors": "Which statistic predicts best",
    "curves": "Acceptance by length, and the schedules",
    "training": "Training",
    "aim": "Did the schedules hit their τ?",
    "pareto": "Cost against quality",
    "time": "Where the time went",
}


@dataclass(frozen=True)
class Report:
    """What was written: the page, the answer in one line, the cheapest schedules that reach the
    threshold in another (empty without one), and what is left out, a line each."""

    page: Path
    headline: str
    cheapest: str = ""
    left_out: tuple[str, ...] = ()


def write_report(frames: SweepFrames, folder: Path) -> Report:
    """Write `report.html`, `figures/*.png`, `threshold.json`, `pareto.csv` and `runs.csv`.

    Files of the same name are replaced; anything else in the folder stays.

    Raises:
        UserError: nothing has been measured yet, or the folder cannot be written.
    """
    check_measured(frames)
    found = answer(frames)
    drawn = list(panels(found))
    try:
        for panel in drawn:
            write_bytes(folder / "figures" / f"{panel.name}.png", png(panel.figure))
        write_text(folder / "threshold.json", tables.threshold_json(found))
        write_text(folder / "pareto.csv", tables.pareto_csv(found))
        write_text(folder / "runs.csv", tables.runs_csv(found))
        write_text(folder / "report.html", page(found, drawn))
    except OSError as error:
        raise UserError(f"the report cannot be written: {error.strerror}", str(folder)) from None
    return Report(
        page=folder / "report.html",
        headline=wording.headline(found),
        cheapest=cheapest_line(found.choices),
        left_out=tuple(frames.left_out),
    )


def check_measured(frames: SweepFrames) -> None:
    """Raises UserError when there is nothing at all to report."""
    if frames.tasks.empty:
        raise UserError("this sweep has no points, so there is nothing to report", frames.name)
    measured = (frames.curves, frames.schedules, frames.evaluations, frames.training)
    if all(f.empty for f in measured):
        states = frames.tasks["state"].value_counts()
        text = ", ".join(f"{n} {state}" for state, n in states.items())
        if frames.left_out:
            first, more = frames.left_out[0], len(frames.left_out) - 1
            rest = f" and {more} more like it" if more else ""
            raise UserError(f"nothing can be read: {first}{rest}", frames.name)
        raise UserError(
            f"nothing has been measured yet ({text}); see 'sparrow-lab status {frames.name}'",
            frames.name,
        )


def page(found: Answer, drawn: list[Panel]) -> str:
    """The HTML page."""
    used: set[str] = set()
    sections: dict[str, list[dict[str, Any]]] = {}
    for panel in drawn:
        svg, colours = inline_svg(panel.figure, panel.name)
        used |= colours
        item = {"svg": Markup(svg), "caption": panel.caption, "name": panel.name}
        sections.setdefault(panel.section, []).append(item)
    # kept apart from `{{ }}` of texts: everything that is not a figure is escaped
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    here = files(__package__)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    t = found.threshold
    return template.render(
        style=Markup(here.joinpath("page.css").read_text(encoding="utf-8")),
        colours=Markup(colour_rules(used)),
        name=found.frames.name,
        headline=wording.headline(found),
        scope=wording.scope(found.runs),
        details=wording.details(found),
        search=found.frames.search,
        settings=tables.setting_rows(found),
        what_if=[
            (k, wording.threshold_headline(v))
            for k, v in found.what_if.items()
            if {v.kind, found.threshold.kind} != {"not_enough"}
        ],
        predictors=wording.predictor_sentences(found.predictors) if len(found.runs) else [],
        mean="" if found.mean.kind == "not_enough" else wording.threshold_headline(found.mean),
        states=tables.state_rows(found),
        unfinished=bool(found.frames.tasks["state"].ne("done").any()),
        failures=tables.failures(found),
        left_out=found.frames.left_out,
        notes=found.frames.notes,
        same=tables.same_runs(found),
        runs=tables.run_rows(found),
        rule=found.frames.rule,
        volumes=tables.volume_rows(budget_front(found.frames.pooled)),
        sections=sections,
        titles=SECTIONS,
        confidence=f"{t.confidence:.0%}".replace("%", " %"),
    )
