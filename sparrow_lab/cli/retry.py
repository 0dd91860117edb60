"""`sparrow-lab retry SWEEP --failed`: run again what failed, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    sweep: Annotated[str, typer.Argument(help="A sweep's name or folder.", show_default=False)],
    failed: Annotated[bool, typer.Option("--failed", help="Points that failed or were lost.")] = (
        False
    ),
    cancelled: Annotated[
        bool, typer.Option("--cancelled", help="Points that were cancelled.")
    ] = False,
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="k=v", help="Only points with this label; repeatable."),
    ] = None,
    parallel: Annotated[
        int | None, typer.Option(min=1, help="Workers at once; the default is as before.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Try points again, from their last checkpoint, with what depends on them.

    Where the sweep is running already, its launcher takes them up.
    """
    from rich.console import Console

    from sparrow_lab.errors import UserError
    from sparrow_lab.runs.layout import find_sweep
    from sparrow_lab.sweep.decide import retry

    if not failed and not cancelled:
        raise UserError("say which points: --failed, --cancelled, or both", "retry")
    folder = find_sweep(sweep, runs)
    states = ("failed", "lost") * failed + ("cancelled",) * cancelled
    return retry(folder, states, where or [], Console(), parallel)
