"""`sparrow-lab report`: write the report of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    sweep: Annotated[str, typer.Argument(help="Name of a sweep under runs/, or its folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write to; default: report/ in the sweep's."),
    ] = None,
) -> None:
    """Write report.html, figures, threshold.json, pareto.csv and runs.csv for SWEEP.

    Works while the sweep runs, and says what is missing.
    """
    from sparrow_analysis.read import read_sweep
    from sparrow_analysis.report import write_report

    frames = read_sweep(sweep)
    report = write_report(frames, output or frames.path / "report")
    typer.echo(report.headline)
    typer.echo(str(report.page))
