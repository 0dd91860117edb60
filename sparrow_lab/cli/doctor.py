"""`sparrow-lab doctor`: find what will not work before anything is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STYLE = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def command(
    site: Annotated[
        Path | None, typer.Option("--site", help="A site file: check its cluster too.")
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Wait so long for a small job on a node; 0: none."
        ),
    ] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    runs: Annotated[
        Path | None,
        typer.Option(help="Folder of all sweeps; default $SPARROW_RUNS or ./runs."),
    ] = None,
) -> int:
    """Check this machine, and with --site a cluster: one line each, with the remedy.

    Exit code 0 when nothing failed (warnings may be there), else 1.
    """
    import json as json_module
    import sys

    from rich.console import Console
    from rich.text import Text

    from sparrow_lab.doctor.run import examine
    from sparrow_lab.runs.layout import runs_root

    console = Console(width=None if sys.stdout.isatty() else 200)
    found = []
    for check in examine(runs_root(runs), site, wait):
        found.append(check)
        if not json:
            line = Text(f"{check.level:<4} ", style=STYLE[check.level])
            line.append(f"{check.name}: {check.found}", style="default")
            if check.remedy:
                line.append(f" -> {check.remedy}", style="default")
            console.print(line, soft_wrap=True)
    failed = sum(check.level == "fail" for check in found)
    if json:
        sys.stdout.write(json_module.dumps([check.to_json() for check in found]) + "\n")
    else:
        warned = sum(check.level == "warn" for check in found)
        console.print(f"{len(found)} checks: {failed} failed, {warned} warnings", highlight=False)
    return 1 if failed else 0
