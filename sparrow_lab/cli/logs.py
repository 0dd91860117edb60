"""`sparrow-lab logs POINT`: what a point printed; a failed one ends with its cause."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    point: Annotated[
        str,
        typer.Argument(
            help="The beginning of an id, or a label such as tau=0.86,seed=0.", show_default=False
        ),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the attempt ends.")
    ] = False,
    sweep: Annotated[
        str | None, typer.Option("--sweep", help="The sweep; needed where several have the point.")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="calibrate, schedule, train or evaluate.")
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Which attempt; the default is the last.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Print the log of POINT's last attempt."""
    import sys

    from sparrow_lab.sweep.read_logs import find_log, print_log

    folder, chosen = find_log(point, sweep, stage, attempt, runs)
    return print_log(folder, chosen, sys.stdout, follow)
