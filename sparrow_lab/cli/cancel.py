"""`sparrow-lab cancel SWEEP`: stop points, all or some; what is done stays."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    sweep: Annotated[str, typer.Argument(help="A sweep's name or folder.", show_default=False)],
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="k=v", help="Only points with this label; repeatable."),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="Time to save; the default is the sweep's."),
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Ask running points to save and leave, and do not begin the others.

    `sparrow-lab retry SWEEP --cancelled` takes them up again from where they were.
    """
    from rich.console import Console

    from sparrow_lab.runs.layout import find_sweep
    from sparrow_lab.sweep.decide import cancel

    return cancel(find_sweep(sweep, runs), where or [], Console(), grace)
