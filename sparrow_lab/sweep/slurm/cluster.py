"""The command line's view of a cluster: submit and come back, or follow."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparrow_lab.config.schema import LaunchConfig
from sparrow_lab.config.site import SiteConfig, load_site
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.estimate import Estimator
from sparrow_lab.sweep.gpu import check_gpus
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm.budget import check_cap, gpu_hours, spelled
from sparrow_lab.sweep.slurm.submit import submit
from sparrow_lab.sweep.slurm.todo import Todo
from sparrow_lab.sweep.states import PointState, read_states
from sparrow_lab.sweep.status import Status
from sparrow_lab.sweep.summary import closing_lines, exit_code

if TYPE_CHECKING:
    from rich.console import Console

    from sparrow_lab.sweep.tracker import Tracker

WATCH_S = 5.0


@dataclass(frozen=True)
class Cluster:
    """A site, and how a sweep is to be handed to it.

    `file` is the site file; `cap` the sweep file's GPU-hours, `cap_where` its place; `canary`:
    the first point of a stage goes alone.
    """

    site: SiteConfig
    file: Path
    watch: bool = False
    cap: float | None = None
    cap_where: str | None = None
    canary: bool = True

    def to_json(self) -> dict[str, Any]:
        """What the ledger keeps, for `retry`."""
        return {
            "file": str(self.file.resolve()),
            "config": self.site.model_dump(mode="json"),
            "cap": self.cap,
            "canary": self.canary,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cluster:
        """As the sweep was last submitted; the site file as it is now, if it is still there."""
        file = Path(data["file"])
        site = load_site(file) if file.is_file() else SiteConfig.model_validate(data["config"])
        return cls(site, file, cap=data.get("cap"), canary=data.get("canary", True))

    def preview(
        self, plan: Plan, states: Mapping[str, PointState], points: Sequence[str]
    ) -> list[str]:
        """Lines on what would be submitted; asks the cluster for its limits, writes nothing."""
        from sparrow_lab.sweep.slurm.preview import preview

        check_gpus((states[i].point for i in points if states[i].state != "done"), self.site)
        lines, hours = preview(self.site, plan, states, points, self.canary)
        check_cap(hours, self.site, self.cap, self.cap_where)
        return lines

    def submit(
        self,
        sweep: SweepFolder,
        options: Options,
        console: Console,
        stages: Mapping[str, str] | None = None,
    ) -> None:
        """Submit what is missing, within the budget. Raises UserError."""

        def say(line: str) -> None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

        def check(todo: Todo) -> None:
            if self.cap is None and self.site.max_gpu_hours is None:
                return
            seconds = Estimator().seconds
            hours = gpu_hours(todo.states.values(), self.site, seconds)
            check_cap(hours, self.site, self.cap, self.cap_where)
            say(f"about {spelled(hours.to_come)} GPU-hours to come, {spelled(hours.used)} used")

        done = submit(sweep, self.site, options, say, stages, check, canary=self.canary)
        say(f"submitted {done}" if done.arrays else "nothing is left to submit")

    def after(self, sweep: SweepFolder, console: Console, tracker: Tracker | None) -> int:
        """Follow to the end with `watch`; else say how to. The exit code."""
        if not self.watch:
            console.print(
                f"nothing here has to stay: 'sparrow-lab status {sweep.name} --watch' follows, "
                f"'sparrow-lab sync {sweep.name} --follow' fills MLflow",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
            return 0
        if tracker is not None:
            tracker.start()
        try:
            follow(sweep, console)
        finally:
            if tracker is not None:
                tracker.stop()
        states = read_states(sweep)
        for line in closing_lines(sweep.name, states):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        if tracker is not None and (warning := tracker.finish()):
            console.print(f"warning: {warning}", markup=False, highlight=False)
        return exit_code(states)


def follow(sweep: SweepFolder, console: Console) -> None:
    """Show where the sweep stands until nothing of it waits or runs. Ctrl-C leaves the jobs."""
    from rich.live import Live

    if not console.is_terminal:
        said = ""
        while True:
            status = Status(sweep)
            line = status.line()
            if line != said:
                said = line
                console.print(f"{time.strftime('%H:%M:%S')} {line}", highlight=False)
            if status.over:
                return
            time.sleep(WATCH_S)
    status = Status(sweep)
    with Live(status.table(), console=console, auto_refresh=False) as live:
        while not status.over:
            time.sleep(WATCH_S)
            status = Status(sweep)
            live.update(status.table(), refresh=True)


def make_cluster(
    file: Path, watch: bool, launch: LaunchConfig, cap_where: str | None, local: bool
) -> Cluster:
    """Read a site file for the command line. Raises UserError."""
    if local:
        raise UserError("--site and --local exclude each other", "--local")
    cap = launch.max_gpu_hours
    return Cluster(load_site(file), file, watch, cap, cap_where, launch.canary)
