"""MLflow's pages on an imported sweep, as a person sees them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.tracking.importer import Importer
from sparrow_lab.tracking.server import Server
from tests.browser import chromium
from tests.tracking import simulate
from tests.tracking.simulate import claim, make_plan, make_sweep, write_steps

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass
class Site:
    url: str
    page: str
    runs: dict[str, Any]
    shots: Path

    def run(self, point: str, tab: str = "") -> str:
        run = self.runs[point].info
        return f"{self.url}/#/experiments/{run.experiment_id}/runs/{run.run_id}{tab}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A sweep with a run that learns, one that collapses, one that failed; and a server on it.

    Screenshots are kept in $SPARROW_SCREENSHOTS, if that is set.
    """
    from mlflow.tracking import MlflowClient

    chromium.executable()
    root = tmp_path_factory.mktemp("runs")
    sweep = make_sweep(root, make_plan("demo", [0.8, 0.86, "dense"]))
    simulate_all(sweep)
    importer = Importer(sweep)
    summary = importer.run()
    assert summary.ok, summary
    client = MlflowClient(tracking_uri=importer.store.uri)
    experiment = client.get_experiment_by_name("demo")
    runs = client.search_runs([experiment.experiment_id])
    shots = Path(os.environ.get("SPARROW_SCREENSHOTS") or tmp_path_factory.mktemp("shots"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Server(importer.store, port) as server:
        named = {run.data.tags.get("sparrow.point", "sweep"): run for run in runs}
        yield Site(server.url, importer.page(), named, shots)


def simulate_all(sweep: SweepFolder) -> None:
    simulate.run_calibrate(sweep.point("cal0"))
    for tau in (0.8, 0.86, "dense"):
        simulate.run_schedule(sweep.point(f"sch-{tau}"), tau)
    simulate.run_train(sweep.point("tra-0.8-0"), collapse=True)
    simulate.run_train(sweep.point("tra-0.86-0"))
    simulate.run_evaluate(sweep.point("eva-0.86-0"))
    failed = claim(sweep.point("tra-dense-0"))
    write_steps(failed, range(12))
    failed.write_failure("error", "CUDA out of memory", "RuntimeError", "Traceback ...")


def colours(path: Path) -> int:
    """How many colours a picture has: a blank page has a handful."""
    from PIL import Image

    return len(np.unique(np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3), axis=0))


def test_the_link_shows_the_training_runs_by_tau(site: Site) -> None:
    url = site.url + site.page
    names = [f"train {t} tiny-s page=8 seed=0" for t in ("tau=0.8", "tau=0.86", "dense")]
    columns = ("evaluate/reward", "acceptance/p05", "detector/collapsed", "tau")
    text = chromium.visible(chromium.html_with(url, "3 matching runs", *names, *columns))
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert colours(chromium.screenshot(url, site.shots / "runs.png")) > 100


def test_the_charts_draw_every_run(site: Site) -> None:
    url = site.url + site.page + "&compareRunsMode=CHART"
    needed = ("acceptance (5)", "acceptance/p05", "scatterlayer")
    document = chromium.html_with(url, *needed, size=(1600, 2000))
    assert document.count("scatterlayer") >= 3, "curves are drawn"
    chromium.screenshot(url, site.shots / "charts.png", size=(1600, 2000))


def test_the_plain_page_lists_the_sweep(site: Site) -> None:
    url = site.url + site.page.split("?")[0]
    text = chromium.visible(chromium.html_with(url, "demo", "matching runs"))
    assert "9 matching runs" in text
    chromium.screenshot(url, site.shots / "plain.png")


def test_a_run_with_infinite_values_loads_and_counts_them(site: Site) -> None:
    url = site.run("tra-0.8-0")
    needed = ("train tau=0.8 tiny-s page=8 seed=0", "Finished", "nonfinite/policy/grad_norm")
    text = chromium.visible(chromium.html_with(url, *needed, size=(1600, 4000)))
    assert "1.797" not in text and "e+308" not in text
    chromium.screenshot(url, site.shots / "run.png", size=(1600, 2000))


def test_the_metric_page_draws_curves(site: Site) -> None:
    url = site.run("tra-0.86-0", "/model-metrics")
    sections = ("acceptance (5)", "acceptance/bin_64 (2)", "reward (3)", "policy (")
    document = chromium.html_with(url, *sections, "scatterlayer", size=(1600, 3000))
    assert "No metrics recorded" not in chromium.visible(document)
    chromium.screenshot(url, site.shots / "metrics.png", size=(1600, 2000))


def test_a_picture_of_acceptance_is_shown(site: Site) -> None:
    url = site.run("tra-0.86-0", "/artifacts")
    names = ("acceptance", "point.json", "result.json", "histograms.parquet", "log.txt")
    document = chromium.html_with(url, *names)
    assert "failure.json" not in chromium.visible(document)
    url += "/acceptance/step-000020.png"
    chromium.html_with(url, "acceptance/step-000020.png", "KB")
    blank = colours(chromium.screenshot(site.run("tra-0.86-0", "/artifacts"), site.shots / "a.png"))
    shown = colours(chromium.screenshot(url, site.shots / "picture.png"))
    assert shown > blank + 500, "the heat map has colours that the page has not"


def test_a_failed_run_says_why(site: Site) -> None:
    url = site.run("tra-dense-0")
    needed = ("Failed", "error: RuntimeError: CUDA out of memory")
    text = chromium.visible(chromium.html_with(url, *needed, size=(1600, 2000)))
    assert "Finished" not in text
    chromium.screenshot(url, site.shots / "failed.png", size=(1600, 1600))


def test_the_sweep_has_a_page_with_its_counts(site: Site) -> None:
    url = site.run("sweep")
    needed = ("7 finished, 1 failed, 2 scheduled", "error: RuntimeError: CUDA out of memory")
    text = chromium.visible(chromium.html_with(url, *needed, size=(1600, 2000)))
    assert text.index("Sweep demo") < text.index("7 finished")
    chromium.screenshot(url, site.shots / "sweep.png", size=(1600, 1600))
