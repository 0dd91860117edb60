"""The answer of a search so far, from the file that its controller keeps; reads only."""

from __future__ import annotations

from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder

SUMMARY = "search.json"
"""File of the sweep's folder with the answer so far; it can be made anew from the ledger."""


def search_lines(sweep: SweepFolder) -> list[str]:
    """The answer in words; nothing for a sweep without a search."""
    found = read_json(sweep.path / SUMMARY)
    lines = found.get("lines") if isinstance(found, dict) else None
    return [str(line) for line in lines] if isinstance(lines, list) else []
