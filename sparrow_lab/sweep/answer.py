"""The answer at the end of a sweep: its report, written once for the results that are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder

LIMIT_S = 600.0
"""Longest wait for the report."""


def answer(sweep: SweepFolder) -> list[str]:
    """Lines that give the answer, with the path of the report.

    The report is written by a process of its own, so that matplotlib and pandas stay out of the
    launcher; if no result is newer than the report there is, nothing is written. A report that
    fails, or that had to leave out damaged points, is one line: the sweep is done all the same.
    """
    page = sweep.path / "report" / "report.html"
    if not _up_to_date(sweep, page):
        command = [sys.executable, "-m", "sparrow_lab.cli", "report", str(sweep.path.resolve())]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"warning: no report: {error}"]
        # one that left something out is written too, and ends with 1
        if done.returncode and not (done.returncode == 1 and _up_to_date(sweep, page)):
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            return [f"warning: no report: {' '.join(last)}"]
    found = read_json(page.parent / "threshold.json")
    found = found if isinstance(found, dict) else {}
    lines = [str(found[name]) for name in ("headline", "cheapest_line") if found.get(name)]
    left_out = found.get("left_out")
    if left_out:
        lines.append(f"warning: {len(left_out)} damaged points are left out, named in the report")
    return [*lines, f"report: {page}"]


def _up_to_date(sweep: SweepFolder, page: Path) -> bool:
    if not page.is_file():
        return False
    written = page.stat().st_mtime
    results = (point.path / "result.json" for point in sweep.points())
    return all(r.stat().st_mtime <= written for r in results if r.is_file())
