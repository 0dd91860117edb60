"""`sparrow-lab sync`: copy run folders into MLflow."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from sparrow_lab.tracking.summary import SyncSummary


def command(
    sweep: str = typer.Argument(..., help="Name of a sweep, or its folder."),
    follow: bool = typer.Option(False, "--follow", help="Go on until the sweep has ended."),
    uri: str | None = typer.Option(
        None, "--uri", help="MLflow tracking URI; by default SQLite beside the runs."
    ),
) -> None:
    """Copy what is new of a sweep into MLflow.

    Nothing is logged twice, and MLflow's database can be deleted: the next sync fills it
    again. Ends with 1 when MLflow is locked or does not answer, or files could not be read.
    """
    from sparrow_lab.runs.layout import find_sweep
    from sparrow_lab.sweep.status import Status
    from sparrow_lab.tracking.follow import follow_sweep
    from sparrow_lab.tracking.importer import Importer

    folder = find_sweep(sweep)
    show = Printer()
    if follow:
        stop = threading.Event()
        # The task at hand is finished: half a task would have to be imported again.
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        total = follow_sweep(
            folder,
            uri,
            busy=lambda: not Status(folder).over,
            report=show.summary,
            stop=stop,
        )
    else:
        with Way() as way:
            total = Importer(folder, uri, tell=way).run()
        show.summary(total)
    if not total.ok:
        raise typer.Exit(1)


LINE_EVERY_S = 30.0


class Way(AbstractContextManager["Way"]):
    """How far a pass is: a bar on a terminal, elsewhere a line on stderr every half minute."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(0, completed=done, total=total, visible=True)
            return
        now = time.monotonic()
        if done and done < total and now - self._said >= LINE_EVERY_S:
            self._said = now
            left = (now - self._began) / done * (total - done)
            typer.echo(f"{done} of {total} points, about {left / 60:.0f} min left", err=True)

    def __enter__(self) -> Way:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

            columns = (BarColumn(), MofNCompleteColumn(), "points", TimeRemainingColumn())
            console = Console(stderr=True)
            self._bar = Progress(*columns, console=console, transient=True)
            self._bar.add_task("", total=None, visible=False)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


class Printer:
    """Prints each summary that did something, and each warning once until it has passed."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._first = True

    def summary(self, summary: SyncSummary) -> None:
        """One line on stdout, notices and warnings on stderr."""
        for notice in summary.notices:
            self._once(f"note: {notice}")
        for problem in summary.problems:
            self._once(f"warning: {problem}")
        if summary.warning is not None:
            self._once(f"warning: {summary.warning}")
            return
        self._said = {text for text in self._said if not text.startswith("warning")}
        if summary.changed or self._first:
            typer.echo(summary.line())
        self._first = False

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            typer.echo(text, err=True)
