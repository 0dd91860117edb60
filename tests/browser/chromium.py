"""A headless Chromium: what a page says once its scripts have run, and how it looks."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def executable() -> str:
    """Path of the browser; the test is skipped, saying so, where there is none."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    return found


def _run(url: str, size: tuple[int, int], wait_s: int, *arguments: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        command = [executable(), *FLAGS, f"--user-data-dir={profile}"]
        command += [f"--window-size={size[0]},{size[1]}", f"--timeout={wait_s * 2000}"]
        command += [f"--virtual-time-budget={wait_s * 1000}", *arguments, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def html(url: str, size: tuple[int, int] = (1600, 1000), wait_s: int = 30) -> str:
    """The page's document after `wait_s` seconds of its own time."""
    return _run(url, size, wait_s, "--dump-dom")


def html_with(url: str, *needed: str, size: tuple[int, int] = (1600, 1000)) -> str:
    """The page's document once it holds all of `needed`; a busy machine is given longer.

    Fails with what was missing after the fifth look: a page's own clock may run out while a busy
    machine has not drawn yet.
    """
    missing: list[str] = []
    for wait_s in (20, 45, 90, 90, 90):
        document = html(url, size, wait_s)
        text = visible(document)
        missing = [part for part in needed if part not in text and part not in document]
        if not missing:
            return document
    raise AssertionError(f"{url} shows no {missing}; it says: {text[:2000]}")


def screenshot(
    url: str,
    target: Path,
    size: tuple[int, int] = (1600, 1000),
    wait_s: int = 30,
    flags: Sequence[str] = (),
) -> Path:
    """A PNG of the page; `flags` go to the browser."""
    _run(url, size, wait_s, f"--screenshot={target}", *flags)
    return target


def visible(document: str) -> str:
    """The text of a document, one space between its pieces; scripts and styles are left out."""
    parser = _Text()
    parser.feed(document)
    return " ".join(" ".join(parser.pieces).split())


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)
