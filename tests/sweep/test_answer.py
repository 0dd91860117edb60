"""What a sweep says at its end, from the report that a process of its own writes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.answer import answer


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    made = SweepFolder(tmp_path / "mine")
    made.write_plan(Plan("mine", {}, ()))
    return made


def ends_with(
    code: int, found: dict[str, Any] | None, sweep: SweepFolder
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A process that writes a report with these findings (None: writes nothing)."""

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = sweep.path / "report"
        if found is not None:
            folder.mkdir()
            (folder / "threshold.json").write_text(json.dumps(found))
            (folder / "report.html").write_text("<h1>")
        return subprocess.CompletedProcess(command, code, "", "Traceback\nKeyError: 'p05'\n")

    return run


@pytest.mark.parametrize(
    ("code", "found", "lines"),
    [
        (0, {"headline": "H", "cheapest_line": "C", "left_out": []}, ["H", "C"]),
        (0, {"headline": "H", "cheapest_line": ""}, ["H"]),
        (
            1,
            {"headline": "H", "left_out": ["train a: damaged", "train b: damaged"]},
            ["H", "warning: 2 damaged points are left out, named in the report"],
        ),
    ],
)
def test_the_lines_of_a_report(
    sweep: SweepFolder,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    found: dict[str, Any],
    lines: list[str],
) -> None:
    monkeypatch.setattr(subprocess, "run", ends_with(code, found, sweep))
    assert answer(sweep) == [*lines, f"report: {sweep.path / 'report' / 'report.html'}"]


def test_a_report_that_failed_is_one_line(
    sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", ends_with(1, None, sweep))
    assert answer(sweep) == ["warning: no report: KeyError: 'p05'"]
