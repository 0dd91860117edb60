"""Run folders -> MLflow: one experiment a sweep, one run a task, nothing logged twice.

A pass looks at every task of the plan and adds what MLflow has not got. What it has is read
from MLflow itself (a tag of each run), so a deleted database is filled again from the start.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import read_notes
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.tracking.cells import NONFINITE
from sparrow_lab.tracking.connection import StoreError, was_replaced
from sparrow_lab.tracking.lease import Lease, LeaseBusy, LeaseLost
from sparrow_lab.tracking.params import Names, params
from sparrow_lab.tracking.parent import has_ended, parent_status, parent_tags
from sparrow_lab.tracking.pictures import artifacts, content_hash, pictures
from sparrow_lab.tracking.state import TAG, Imported
from sparrow_lab.tracking.steps import read_cells
from sparrow_lab.tracking.store import Store, of_sweep, settings
from sparrow_lab.tracking.summary import SyncSummary
from sparrow_lab.tracking.tags import FOLDER, KIND, OPTIONAL, POINT, task_tags
from sparrow_lab.tracking.task import Task, read_task
from sparrow_lab.tracking.views import page
from sparrow_lab.tracking.writer import Known, Writer

WAIT_S = 60.0
"""How long one import waits for another one that is at work."""


def sync(
    sweep: SweepFolder, uri: str | None = None, follow: bool = False, wait_s: float = WAIT_S
) -> SyncSummary:
    """Copy what is new of a sweep into MLflow.

    Args:
        sweep: the sweep's folder; it is only read.
        uri: MLflow tracking URI; None takes the sweep's own, else SQLite beside the sweeps.
        follow: go on, every few seconds, until the sweep has ended.
        wait_s: how long to wait while another importer is at work.

    Returns:
        What was done. A store that is locked, down or absent is no exception but its
        `warning`; a later call catches up.

    Raises:
        UserError: no plan in the folder, or a URI that is not supported.
    """
    if follow:
        from sparrow_lab.tracking.follow import follow_sweep

        return follow_sweep(sweep, uri)
    return Importer(sweep, uri).run(wait_s)


class Importer:
    """Imports one sweep, pass after pass; what MLflow holds is read once and then remembered.

    Once `stop` is set, a pass ends after the task at hand. `tell` hears after every task how many
    of how many the pass has been through.
    """

    def __init__(
        self,
        sweep: SweepFolder,
        uri: str | None = None,
        stop: threading.Event | None = None,
        tell: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self.sweep = sweep
        self._stop = stop or threading.Event()
        self._tell = tell
        self.store: Store = of_sweep(sweep, uri)
        self.experiment = settings(sweep)[1]
        self._writer: Writer | None = None
        self._runs: dict[str, Known] = {}
        self._parent: Known | None = None
        self._lease: Lease | None = None

    def page(self) -> str:
        """Path of the sweep on MLflow's page; empty before the first pass that reached MLflow."""
        stages = [point.stage for point in self.sweep.read_plan().points]
        return page(self._writer.experiment_id, stages) if self._writer else ""

    def run(self, wait_s: float = WAIT_S) -> SyncSummary:
        """One pass. Problems with MLflow end it early and are its `warning`."""
        began = time.monotonic()
        summary = SyncSummary(self.sweep.name, self.store.uri, self.experiment)
        summary.notices += self.store.notices
        try:
            with Lease(self.store.lock, wait_s) as self._lease:
                self._pass(summary)
        except LeaseBusy as busy:
            summary.warning = f"another import is at work ({busy}); run sync again later"
        except (StoreError, LeaseLost) as error:
            summary.warning = f"not everything is in MLflow: {error}"
            self._writer = None
        except OSError as error:
            summary.warning = f"not everything is in MLflow: {error}"
            self._writer = None
        summary.seconds = time.monotonic() - began
        return summary

    def _beat(self) -> None:
        assert self._lease is not None
        self._lease.renew()

    def _pass(self, summary: SyncSummary) -> None:
        plan = self.sweep.read_plan()
        events = Ledger(self.sweep.ledger_path).read()
        notes = read_notes(events)
        tasks = [read_task(p, self.sweep.point(p.id), notes.of(p.id)) for p in plan.points]
        summary.tasks = len(tasks)
        summary.ended = has_ended(tasks)
        writer = self._open()
        began = min((float(e["time"]) for e in events if "time" in e), default=time.time())
        parent = self._ensure_parent(writer, plan, began)
        by_id = {point.id: point for point in plan.points}
        names = Names(plan.points)
        aliases: dict[str, list[str]] = defaultdict(list)
        for task in tasks:
            if task.alias_of in by_id:
                aliases[str(task.alias_of)].append(task.point.id)
        for done, task in enumerate(tasks):
            self._tell(done, len(tasks))
            if task.result is None and not task.attempts:
                summary.waiting += 1
                continue
            if self._stop.is_set():
                summary.warning = "asked to stop; run sync again for the rest"
                return
            try:
                self._import(writer, parent, task, by_id, names, aliases[task.point.id], summary)
            except (ValueError, KeyError, TypeError) as error:
                # A damaged file is the trouble of one task; the others are imported.
                where = f"{names(task.point)} ({task.folder.path})"
                summary.problems.append(f"{where}: {type(error).__name__}: {error}")
        self._tell(len(tasks), len(tasks))
        self._finish_parent(writer, parent, tasks, summary)

    def _open(self) -> Writer:
        """Connect and read what MLflow holds; both again after the database was replaced."""
        if self._writer is None or was_replaced(self.store):
            self._beat()
            self._writer = Writer(self.store, self.experiment, self._beat)
            self._runs, self._parent = {}, None
            for run in list(self._writer.runs(self.sweep.name)):
                point = run.tags.get(POINT)
                if run.tags.get(KIND) == "sweep" and self._parent is None:
                    self._parent = run
                elif point and point not in self._runs:
                    self._runs[point] = run
                else:
                    self._writer.delete(run, "a second run of one task")
        return self._writer

    def _ensure_parent(self, writer: Writer, plan: Plan, began: float) -> Known:
        folder = str(self.sweep.path.absolute())
        if self._parent is None:
            tags = parent_tags(self.sweep, plan, [])
            self._parent = writer.create(plan.name, began, tags)
        there = self._parent.tags.get(FOLDER, folder)
        if there != folder and not self.store.own and Path(there).is_dir():
            raise StoreError(
                f"experiment '{self.experiment}' of {self.store.uri} holds the sweep {there}; "
                "give this one another name under tracking.experiment"
            )
        return self._parent

    def _import(
        self,
        writer: Writer,
        parent: Known,
        task: Task,
        plan: Mapping[str, PlannedPoint],
        names: Names,
        same: list[str],
        summary: SyncSummary,
    ) -> None:
        run = self._runs.get(task.point.id)
        state = Imported.from_tag(run.tags.get(TAG)) if run else None
        name = names(task.point)
        files = f"{task.fingerprint()} {name} {' '.join(same)}"
        if run and state and state.files == files and not state.open:
            summary.unchanged += 1
            return
        cells = read_cells(task)
        news = state.news(cells) if state else None
        tags = task_tags(task, self.sweep.name, parent.run_id, plan, names, same)
        if run and (state is None or news is None):
            writer.delete(run, "measured again by a later attempt, or not imported whole")
            del self._runs[task.point.id]
            run, state, summary.rebuilt = None, None, summary.rebuilt + 1
        elif not run:
            summary.created += 1
        if run is None or state is None or news is None:
            state, news = Imported(open=True), cells
            run = writer.create(name, task.started, {**tags, TAG: state.to_tag()})
            self._runs[task.point.id] = run
        writer.log_params(run, params(task.point))
        if news:
            # Before the values: an import that dies among them is known not to have finished.
            writer.set_tags(run, {TAG: replace(state, open=True).to_tag()})
            writer.log(run, news)
        state = state.holding(cells)
        writer.set_tags(run, {**tags, TAG: state.to_tag()}, OPTIONAL)
        summary.values += len(news)
        summary.nonfinite += sum(cell.name.startswith(NONFINITE) for cell in news)
        for step, when, png in pictures(task, name, cells, state.images):
            writer.picture(run, step, when, png)
            state = replace(state, images=(*state.images, step))
            writer.set_tags(run, {TAG: state.to_tag()})
            summary.images += 1
        with tempfile.TemporaryDirectory() as scratch:
            held = self._artifacts(writer, run, artifacts(task, Path(scratch)), state, summary)
        writer.set_tags(run, {TAG: replace(state, artifacts=held, files=files).to_tag()})
        writer.set_status(run, name, task.status, task.ended)

    def _artifacts(
        self,
        writer: Writer,
        run: Known,
        named: Mapping[str, Path],
        state: Imported,
        summary: SyncSummary,
    ) -> dict[str, str]:
        """Log files whose content is new; return the hashes of all."""
        held = dict(state.artifacts)
        for name, path in named.items():
            content = content_hash(path)
            if held.get(name) != content:
                writer.artifact(run, path)
                held[name] = content
                summary.artifacts += 1
        return held

    def _finish_parent(
        self, writer: Writer, parent: Known, tasks: list[Task], summary: SyncSummary
    ) -> None:
        plan = self.sweep.read_plan()
        state = Imported.from_tag(parent.tags.get(TAG)) or Imported()
        paths = (self.sweep.path / "sweep.yaml", self.sweep.plan_path)
        named = {path.name: path for path in paths if path.is_file()}
        held = self._artifacts(writer, parent, named, state, summary)
        tags = parent_tags(self.sweep, plan, tasks)
        tags[TAG] = replace(state, artifacts=held).to_tag()
        writer.set_tags(parent, tags)
        status, ended = parent_status(tasks)
        writer.set_status(parent, plan.name, status, ended)
