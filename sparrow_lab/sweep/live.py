"""The launcher's views: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.guards import default_parallel
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.progress import Progress, progress_of, time_left
from sparrow_lab.sweep.states import PointState, held_by_needs
from sparrow_lab.sweep.table import overview
from sparrow_lab.sweep.view import TEXT, View

REFRESH_S = 0.5

LOUD = {"found", "again", "failed", "lost", "held", "interrupted"}
"""Notes that stay above the live table; the rest is in the table."""


def make_view(console: Console) -> View:
    """The live table where the console is a terminal, else plain lines."""
    return LiveView(console) if console.is_terminal else PlainView(console)


class PlainView:
    """One line when a point starts or ends; nothing in between."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._said = ""
        self._done = ""

    def note(self, kind: str, points: Sequence[PlannedPoint], reason: str = "") -> None:
        """Print `12:00:01 done     train tau=0.86,seed=0: reason`."""
        clock = time.strftime("%H:%M:%S")
        for point in points:
            line = f"{clock} {TEXT[kind]}: {point.stage} {point.short()} ({point.id})"
            self._print(line + (f": {reason}" if reason else ""))

    def update(
        self,
        sweep: SweepFolder,
        states: Mapping[str, PointState],
        jobs: Sequence[Job],
        options: Options,
    ) -> None:
        """Print nothing: what matters comes as notes."""

    def stopping(self, hard: bool, workers: int, grace_s: float) -> None:
        """Say once that a stop was asked for, and once more when it was asked for again."""
        text = stop_text(hard, workers, grace_s)
        if text != self._said:
            self._said = text
            self._print(text)

    def close(self) -> None:
        """Nothing to close."""

    def _print(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveView:
    """The table, redrawn twice a second; failures and the like stay above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._started = False
        self._drawn = 0.0
        self._said = ""
        self._last: tuple[SweepFolder, Mapping[str, PointState], Options] | None = None

    def note(self, kind: str, points: Sequence[PlannedPoint], reason: str = "") -> None:
        """Print a line above the table for what a user should notice."""
        if kind in LOUD:
            for point in points:
                what = escape(f"{point.stage} {point.short()} ({point.id})")
                tail = escape(f": {reason}") if reason else ""
                self.console.print(f"[bold]{TEXT[kind]}[/]: {what}{tail}", highlight=False)

    def update(
        self,
        sweep: SweepFolder,
        states: Mapping[str, PointState],
        jobs: Sequence[Job],
        options: Options,
    ) -> None:
        """Redraw when the last drawing is half a second old."""
        self._last = (sweep, states, options)
        if time.monotonic() - self._drawn < REFRESH_S:
            return
        self._drawn = time.monotonic()
        if not self._started:
            self._live.start()
            self._started = True
        shown = chosen(states, options)
        running = running_progress(jobs, shown)
        workers = options.parallel or default_parallel(1)
        left = time_left(shown.values(), running, workers)
        self._live.update(overview(sweep.name, shown, running, left), refresh=True)

    def stopping(self, hard: bool, workers: int, grace_s: float) -> None:
        """Say once that a stop was asked for, and once more when it was asked for again."""
        text = stop_text(hard, workers, grace_s)
        if text != self._said:
            self._said = text
            self.console.print(f"[bold yellow]{text}[/]", highlight=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._started and self._last is not None:
            sweep, states, options = self._last
            table = overview(sweep.name, chosen(states, options), {}, None)
            self._live.update(table, refresh=True)
            self._live.stop()


def chosen(states: Mapping[str, PointState], options: Options) -> dict[str, PointState]:
    """The points of this run, with those marked that wait for something that failed."""
    marked = held_by_needs(states.values())
    return {i: s for i, s in marked.items() if options.only is None or i in options.only}


def running_progress(jobs: Sequence[Job], states: Mapping[str, PointState]) -> dict[str, Progress]:
    """The progress of the point that each job is at."""
    found: dict[str, Progress] = {}
    for job in jobs:
        for point_id in job.points:
            if point_id in states and job.sweep.point(point_id).read_result() is None:
                found[point_id] = progress_of(job.attempt_at(point_id))
                break
    return found


def stop_text(hard: bool, workers: int, grace_s: float) -> str:
    """What is said on Ctrl-C."""
    if hard:
        return "stopping at once"
    if not workers:
        return "stopping"
    return f"stopping: workers may take {grace_s:g} s to save; Ctrl-C again to stop at once"
