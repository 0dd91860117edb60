"""`sparrow-lab report`: write the report of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MOST_LINES = 8
"""Damaged points that are named on the terminal; all are on the page."""


def command(
    sweep: Annotated[str, typer.Argument(help="Name of a sweep under runs/, or its folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write to; default: report/ in the sweep's."),
    ] = None,
) -> None:
    """Write report.html, figures, threshold.json, pareto.csv and runs.csv for SWEEP.

    Works while the sweep runs, and says what is missing. Points whose files are damaged are left
    out and named, on the page too; the exit code is then 1.
    """
    from sparrow_analysis.read import read_sweep
    from sparrow_analysis.report import write_report

    frames = read_sweep(sweep)
    report = write_report(frames, output or frames.path / "report")
    typer.echo(report.headline)
    if report.cheapest:
        typer.echo(report.cheapest)
    for line in report.left_out[:MOST_LINES]:
        typer.echo(f"left out: {line}")
    if len(report.left_out) > MOST_LINES:
        typer.echo(f"left out: {len(report.left_out) - MOST_LINES} more, named on the page")
    typer.echo(str(report.page))
    if report.left_out:
        raise typer.Exit(1)
