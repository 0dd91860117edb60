"""The report: complete, self-contained, honest about what is missing."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from sparrow_analysis.answer import answer
from sparrow_analysis.read import read_sweep
from sparrow_analysis.report import write_report
from sparrow_analysis.report.panels import panels
from sparrow_analysis.report.theme import colour_rules, darkened
from sparrow_analysis.report.write import page
from sparrow_analysis.wording import details, headline, threshold_details, threshold_headline
from sparrow_lab.cli import app
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from tests.analysis.simulated import Level, World, ladder, step_at, write_sweep

BOTH = ladder([0.55, 0.7, 0.8, 0.9, 0.96], page_size=4) + ladder([0.6, 0.75, 0.82, 0.89, 0.95])


SMALL = World(ladder([0.6, 0.9]), step_at(0.86), seeds=1, steps=8, evaluate_every=2)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    same = Level("tiny-s", 8, 0.94, 0.95, 0.99, name="same")
    levels = [*BOTH[:-1], same, Level("tiny-s", 8, 0.95, 0.95, 0.99, name="same")]
    world = World(levels, step_at(0.86), seeds=2)
    return write_sweep(tmp_path_factory.mktemp("runs"), world)


@pytest.fixture(scope="module")
def report(sweep: SweepFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(read_sweep(sweep.path), folder)
    return folder


def test_every_file_is_there(report: Path) -> None:
    names = {p.relative_to(report).as_posix() for p in report.rglob("*") if p.is_file()}
    figures = {
        f"figures/{name}.png"
        for name in (
            "threshold",
            "predictors",
            "predictor-scores",
            "curves-tiny-s",
            "training",
            "aim",
            "pareto-budgets",
            "pareto-runs",
            "time",
        )
    }
    assert names == figures | {"report.html", "threshold.json", "pareto.csv", "runs.csv"}


def test_the_page_opens_with_the_answer(report: Path) -> None:
    html = (report / "report.html").read_text()
    (title,) = re.findall(r"<h1>(.*?)</h1>", html)
    assert re.fullmatch(
        r"Collapse threshold: p5 = 0\.8\d \(95 % interval 0\.\d\d to 0\.\d\d; "
        r"no run lies between p5 0\.82 and 0\.89\)",
        title,
    )


def test_the_page_needs_nothing_from_outside(report: Path) -> None:
    html = (report / "report.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert links
    assert all(link.startswith("#") for link in links)
    assert "@import" not in html
    assert not re.findall(r"url\((?!['\"]?#)", html)
    assert "<script" not in html


def test_ids_are_unique_and_every_reference_leads_somewhere(report: Path) -> None:
    html = (report / "report.html").read_text()
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    links = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', html)
    assert {a or b for a, b in links} <= set(ids)


def test_every_colour_has_a_light_and_a_dark_value(report: Path) -> None:
    html = (report / "report.html").read_text()
    used = set(re.findall(r"var\(--c-([0-9a-f]{6})\)", html))
    assert used
    light, dark = html.split("@media (prefers-color-scheme: dark)")[-2:]
    for colour in used:
        assert f"--c-{colour}:#" in light
        assert f"--c-{colour}:#" in dark


def test_the_same_sweep_gives_the_same_page(tmp_path: Path) -> None:
    found = answer(read_sweep(write_sweep(tmp_path, SMALL).path))
    assert page(found, list(panels(found))) == page(found, list(panels(found)))


def test_runs_with_several_names_are_said(report: Path) -> None:
    html = (report / "report.html").read_text()
    assert "tau=0.94 = tau=0.95" in html


def test_the_numbers_for_other_programs(report: Path) -> None:
    data = json.loads((report / "threshold.json").read_text())
    assert data["threshold"]["kind"] == "threshold"
    assert data["threshold"]["low"] < 0.86 < data["threshold"]["high"]
    assert data["predictors"]["table"][0]["statistic"] == "p01"
    runs = pd.read_csv(io.StringIO((report / "runs.csv").read_text()))
    assert set(runs["verdict"]) == {"collapsed", "stable"}
    pareto = pd.read_csv(io.StringIO((report / "pareto.csv").read_text()))
    assert set(pareto["kind"]) == {"budget", "run"}


def test_dark_is_light_turned_over() -> None:
    assert darkened("ffffff") == "16191d"
    ink = darkened("1b1f24")
    assert int(ink[:2], 16) > 0xC0
    assert darkened("0072b2") != darkened("d55e00")
    assert colour_rules(set()).count(":root") == 2


def test_curves_only(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, SMALL)
    plan = sweep.read_plan()
    kept = tuple(p for p in plan.points if p.stage == "calibrate")
    sweep.write_plan(Plan(plan.name, plan.verdict, kept))
    made = write_report(read_sweep(sweep.path), tmp_path / "out")
    assert made.headline.startswith("Curves only")
    html = made.page.read_text()
    assert 'id="curves"' in html and 'id="pareto"' in html
    assert 'id="threshold"' not in html and 'id="runs"' not in html
    assert (tmp_path / "out" / "figures" / "curves-tiny-s.png").is_file()


def test_an_unfinished_sweep_says_what_is_missing(tmp_path: Path) -> None:
    world = replace(SMALL, seeds=2, stop_at=lambda level, seed: 4 if seed == 1 else None)
    html = page(answer(read_sweep(write_sweep(tmp_path, world).path)), [])
    assert "This sweep is not finished." in html
    assert "train: 3 of 6 done; 3 interrupted" in html
    assert "ended early" in html


def test_nothing_measured_is_one_clear_line(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, SMALL)
    for path in (tmp_path / "simulated" / "points").rglob("*"):
        if path.is_file() and path.name != "point.json":
            path.unlink()
    with pytest.raises(UserError, match="nothing has been measured yet"):
        write_report(read_sweep(sweep.path), tmp_path / "out")
    sweep.write_plan(Plan("simulated", {}, ()))
    with pytest.raises(UserError, match="no points"):
        write_report(read_sweep(sweep.path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match="cannot be written"):
        write_report(read_sweep(write_sweep(tmp_path, SMALL).path), tmp_path / "file")


def test_the_answer_of_a_search_is_shown(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "runs", SMALL)
    text = {"schema": 1, "lines": ["tau: 0.5 collapses, 0.6 is stable", "  9 training runs"]}
    (sweep.path / "search.json").write_text(json.dumps(text))
    write_report(read_sweep(sweep.path), tmp_path / "report")
    html = (tmp_path / "report" / "report.html").read_text()
    assert "<li>tau: 0.5 collapses, 0.6 is stable</li>" in html and "<li>9 training runs" in html


def test_text_of_people_is_escaped(tmp_path: Path) -> None:
    world = replace(SMALL, levels=ladder([0.6], model="<b>bold</b>"))
    found = answer(read_sweep(write_sweep(tmp_path, world).path))
    html = page(found, [p for p in panels(found) if p.section == "threshold"])
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>bold</b>" not in html


def test_settings_that_differ_are_the_headline(tmp_path: Path) -> None:
    levels = [
        *ladder([0.5, 0.56, 0.62, 0.7, 0.8, 0.9], page_size=4),
        *ladder([0.7, 0.8, 0.86, 0.9, 0.94, 0.97]),
    ]
    world = World(levels, lambda lv: float(lv.p05 < (0.6 if lv.page_size == 4 else 0.92)))
    found = answer(read_sweep(write_sweep(tmp_path, world).path))
    assert found.differs
    assert headline(found).startswith("No single threshold")
    lines = details(found)
    assert any(line.startswith("One threshold does not serve all 2 settings") for line in lines)
    assert any(line.startswith("tiny-s · page 4: Collapse threshold: p5 = 0.") for line in lines)


def test_other_readings_are_shown_where_they_matter(tmp_path: Path) -> None:
    world = World(
        BOTH,
        step_at(0.86),
        seeds=2,
        stop_at=lambda lv, seed: 36 if lv.p05 < 0.6 else None,
    )
    found = answer(read_sweep(write_sweep(tmp_path, world).path))
    assert found.threshold.censored_down == 2
    (reading,) = found.what_if
    assert "ended early" in reading
    assert found.what_if[reading].collapsed == found.threshold.collapsed + 2


def test_every_reason_has_words(tmp_path: Path) -> None:
    from typing import get_args

    from sparrow_analysis.threshold import Reason, Threshold

    for reason in get_args(Reason):
        kind = "none" if reason else "threshold"
        t = Threshold("p05", kind, reason, value=0.86, low=0.8, high=0.9, p=0.01, p_runs=0.01)
        assert threshold_headline(t)
        assert all(threshold_details(t))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sweep(tmp_path, SMALL)
    monkeypatch.setenv("SPARROW_RUNS", str(tmp_path))
    done = CliRunner().invoke(app, ["report", "simulated", "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "Not enough runs to say: 2 sparse runs with a verdict" in done.output
    assert str(tmp_path / "out" / "report.html") in done.output.replace("\n", "")
    wrong = CliRunner().invoke(app, ["report", "simulatod"])
    assert isinstance(wrong.exception, UserError)
    assert "did you mean 'simulated'" in str(wrong.exception)


def test_damaged_points_are_left_out_and_said_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = write_sweep(tmp_path, SMALL)
    hurt = read_sweep(sweep.path).runs["run"].iloc[0]
    events = sweep.point(hurt).path / "attempts" / "1" / "events.parquet"
    events.write_bytes(events.read_bytes()[: events.stat().st_size // 2])
    monkeypatch.setenv("SPARROW_RUNS", str(tmp_path))
    done = CliRunner().invoke(app, ["report", "simulated", "-o", str(tmp_path / "out")])
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    said = f"({hurt}): attempts/1/events.parquet is damaged: "
    assert said in done.stdout and "left out: train " in done.stdout
    html = (tmp_path / "out" / "report.html").read_text()
    assert "1 damaged point is left out." in html and said in html
    assert "This sweep is not finished." not in html
    (line,) = json.loads((tmp_path / "out" / "threshold.json").read_text())["left_out"]
    assert said in line


def test_nothing_but_damage_is_one_clear_line(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, SMALL)
    for path in (tmp_path / "simulated" / "points").rglob("*"):
        if path.is_file() and path.name not in ("point.json", "claim.json"):
            path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match=r"nothing can be read: .* is damaged: .* more like it"):
        write_report(read_sweep(sweep.path), tmp_path / "out")


def test_a_sweep_whose_runs_are_all_damaged_is_no_sweep_of_curves_only(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, SMALL)
    for run in read_sweep(sweep.path).runs["run"]:
        (sweep.point(run).path / "result.json").write_text("{")
    found = answer(read_sweep(sweep.path))
    assert headline(found) == "Not enough runs to say: the files of every run are damaged"
    assert "3 damaged points are left out." in details(found)
    assert "This sweep is not finished." in page(found, [])
