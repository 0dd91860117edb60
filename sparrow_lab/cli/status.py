"""`sparrow-lab status SWEEP`: the state of every point, from files; writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WATCH_S = 2.0


def command(
    sweep: Annotated[str, typer.Argument(help="A sweep's name or folder.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until nothing runs any more.")
    ] = False,
    all_: Annotated[bool, typer.Option("--all", "-a", help="List every point.")] = False,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Show where SWEEP stands: by stage, what runs, what failed and why."""
    import json as json_module
    import sys
    import time

    from rich.console import Console
    from rich.live import Live

    from sparrow_lab.runs.layout import find_sweep
    from sparrow_lab.sweep.status import Status

    folder = find_sweep(sweep, runs)
    # In a pipe or a file lines are not broken at 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 200)
    if json:
        while True:
            status = Status(folder)
            sys.stdout.write(json_module.dumps(status.to_json(), allow_nan=False) + "\n")
            sys.stdout.flush()
            if not watch or status.over:
                return 0
            time.sleep(WATCH_S)
    status = Status(folder)
    if not watch:
        console.print(status.table(all_))
        return 0
    with Live(status.table(all_), console=console, auto_refresh=False) as live:
        while not status.over:
            time.sleep(WATCH_S)
            status = Status(folder)
            live.update(status.table(all_), refresh=True)
    return 0
