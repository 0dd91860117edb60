"""`sparrow-lab ui`: MLflow's own page on the runs, kept up to date while it is open."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import typer

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from sparrow_lab.cli.sync import Printer
    from sparrow_lab.runs.layout import SweepFolder
    from sparrow_lab.tracking.importer import Importer
    from sparrow_lab.tracking.server import Server

SHOWN = 10
POLL_S = 5.0
ENDED_POLL_S = 60.0
"""A sweep that has ended may still be retried, so it is looked at now and then."""


def command(
    sweep: str | None = typer.Argument(None, help="A sweep; all in the runs folder by default."),
    port: int = typer.Option(5000, "--port", min=1, max=65535, help="Port on 127.0.0.1."),
) -> None:
    """Open MLflow on the runs; Ctrl-C ends it.

    The sweeps are imported first, and again every few seconds while the page is open. The
    server listens on this machine only; from elsewhere use an SSH tunnel.
    """
    from sparrow_lab.cli.sync import Printer
    from sparrow_lab.tracking.importer import Importer
    from sparrow_lab.tracking.server import Server, check_port

    importers = [Importer(folder) for folder in _sweeps(sweep)]
    store = importers[0].store
    if store.is_server:
        typer.echo(f"this sweep is tracked by the server {store.uri}")
        return
    check_port(port)
    show = Printer()
    for importer in _of_store(importers):
        show.summary(importer.run())
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    with suppress(KeyboardInterrupt):
        typer.echo("starting MLflow ...")
        with Server(store, port) as server:
            typer.echo(f"MLflow: {server.url}   (Ctrl-C ends it)")
            for importer in _of_store(importers)[-SHOWN:]:
                typer.echo(f"  {importer.sweep.name}: {server.url}{importer.page()}")
            _keep_up(server, _of_store(importers), show)
        raise UserError(f"MLflow's server ended: {server.said()}", "ui")
    typer.echo("MLflow has ended")


def _sweeps(name: str | None) -> list[SweepFolder]:
    """The sweep of that name, or all. Raises UserError when there is none."""
    from sparrow_lab.runs.layout import SweepFolder, find_sweep, runs_root

    if name is not None:
        return [find_sweep(name)]
    root = runs_root()
    found = sorted(path.parent for path in root.glob("*/plan.json"))
    if not found:
        raise UserError("there is no sweep in this folder yet", str(root))
    return [SweepFolder(path) for path in found]


def _of_store(importers: list[Importer]) -> list[Importer]:
    """Those that write where the first one does: the page shows one store."""
    return [importer for importer in importers if importer.store.uri == importers[0].store.uri]


def _keep_up(server: Server, importers: list[Importer], show: Printer) -> None:
    """Import again and again while the server runs."""
    due = {id(importer): time.monotonic() + POLL_S for importer in importers}
    while server.alive:
        for importer in importers:
            if time.monotonic() >= due[id(importer)]:
                summary = importer.run(wait_s=POLL_S)
                show.summary(summary)
                wait = ENDED_POLL_S if summary.ended else POLL_S
                due[id(importer)] = time.monotonic() + wait
        time.sleep(0.5)


def _leave(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)
