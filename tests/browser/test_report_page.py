"""The report in a browser: complete without a network, and no wider than the window."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.simulated import World, ladder, step_at, write_sweep
from tests.browser import chromium

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

PROBE = """<script>addEventListener("load", () => {
  const root = document.documentElement;
  const wide = [...document.querySelectorAll("body *")].filter(
    e => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest("svg"));
  root.dataset.over = root.scrollWidth - root.clientWidth;
  root.dataset.wide = wide.map(e => e.tagName).slice(0, 5).join(" ");
  root.dataset.drawn = [...document.querySelectorAll("svg")].filter(
    e => e.getBoundingClientRect().width > 200).length;
  root.dataset.fetched = performance.getEntriesByType("resource").length;
});</script>"""
"""Writes what a person would notice into attributes of the page's root."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sparrow_analysis.read import read_sweep
    from sparrow_analysis.report import write_report

    chromium.executable()
    levels = ladder([0.55, 0.7, 0.8, 0.9, 0.96], page_size=4)
    levels += ladder([0.6, 0.75, 0.82, 0.89, 0.95])
    sweep = write_sweep(tmp_path_factory.mktemp("runs"), World(levels, step_at(0.86), seeds=2))
    folder = tmp_path_factory.mktemp("report")
    written = write_report(read_sweep(sweep.path), folder).page
    probed = folder / "probed.html"
    probed.write_text(written.read_text().replace("</body>", PROBE + "</body>"))
    return probed


def shots(tmp_path: Path) -> Path:
    return Path(os.environ.get("SPARROW_SCREENSHOTS") or tmp_path)


def noted(document: str, name: str) -> str:
    (value,) = re.findall(rf'data-{name}="([^"]*)"', document.split("<head", 1)[0])
    return value


@pytest.mark.parametrize("width", [1280, 700])
def test_it_fits_the_window_and_needs_nothing_else(page: Path, tmp_path: Path, width: int) -> None:
    document = chromium.html(page.as_uri(), size=(width, 1200), wait_s=5)
    assert noted(document, "over") == "0", f"wider than the window: {noted(document, 'wide')}"
    assert noted(document, "fetched") == "0", "the page must not ask for another file"
    assert int(noted(document, "drawn")) >= 5
    target = shots(tmp_path) / f"report-{width}.png"
    chromium.screenshot(page.as_uri(), target, size=(width, 6000), wait_s=5)
    assert target.stat().st_size > 20_000


def test_the_answer_is_what_a_person_reads_first(page: Path) -> None:
    text = chromium.visible(chromium.html(page.as_uri(), wait_s=5))
    (title,) = re.findall(r"<h1>(.*?)</h1>", page.read_text(), flags=re.DOTALL)
    answer = " ".join(chromium.visible(title).split())
    assert answer in text
    assert text.index(answer) < 400
    assert "undefined" not in text and "NaN" not in text.replace("NaN until", "")


def test_it_can_be_read_in_the_dark(page: Path, tmp_path: Path) -> None:
    from PIL import Image

    def brightness(name: str, *flags: str) -> float:
        target = shots(tmp_path) / name
        chromium.screenshot(page.as_uri(), target, size=(1280, 3000), wait_s=5, flags=flags)
        return float(np.asarray(Image.open(target).convert("L")).mean())

    light = brightness("report-light.png")
    dark = brightness("report-dark.png", "--blink-settings=preferredColorScheme=0")
    assert light > 180
    assert dark < 110
