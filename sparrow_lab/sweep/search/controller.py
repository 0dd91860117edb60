"""The controller of an adaptive sweep: what has ended is told, what is proposed is planned.

It starts nothing. A launcher (of this machine, or one that submits to Slurm) calls `grow`
whenever states may have changed and runs the points that come back. Order of writing, so that a
kill at any instant loses nothing and doubles nothing: told and proposed trials go to the ledger
first, the plan is made from the ledger, and only a planned point can be run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.config.space import choice_of, is_adaptive, name_of
from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.runs.layout import SweepFolder, spelled
from sparrow_lab.runs.ledger import Event, Ledger
from sparrow_lab.runs.notes import Note
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.runs.search import SUMMARY
from sparrow_lab.sweep.content import Files
from sparrow_lab.sweep.estimate import Estimator
from sparrow_lab.sweep.plan import make_plan
from sparrow_lab.sweep.preview import duration
from sparrow_lab.sweep.search.method import Method
from sparrow_lab.sweep.search.trials import (
    Outcome,
    Proposal,
    Step,
    Trial,
    read_trials,
    spelled_values,
    write_proposed,
    write_told,
)
from sparrow_lab.sweep.states import PointState, held_by_needs, own_state, read_states

OWN_STAGES = ("train", "evaluate")
"""Stages that a proposal seldom shares with others."""

STOPPED, GOES_ON = "search_stopped", "search_goes_on"
"""Kinds of the ledger's events by which a search is cancelled and taken up again."""


class Controller:
    """One search in its folder. Only one may be at work in a folder at a time.

    Args:
        sweep: the folder; it need not exist.
        config: the experiment file's.
        source_dir: the experiment file's folder.
    """

    def __init__(self, sweep: SweepFolder, config: SweepConfig, source_dir: Path) -> None:
        self.sweep, self.config, self.source_dir = sweep, config, source_dir
        self._files = Files(source_dir)
        self._ledger = Ledger(sweep.ledger_path)
        self.method: Method = _method(config, sweep, self.plan_of)
        self.trials: list[Trial] = []
        self.finished = ""
        """Why nothing more will be proposed; empty while the search goes on."""
        self.taken_up: int | None = None
        """Points that `begin` took up again with a search that had been cancelled; None when
        it had not been."""
        self._seen: tuple[str, ...] | None = None
        self._runs: dict[str, bool] = {}
        self.read()

    def read(self) -> None:
        """Read the trials anew from the ledger."""
        events = self._ledger.read()
        self.trials = read_trials(events)
        self._stopped = _is_stopped(events)
        self.finished = self._next().finished

    # ------------------------------------------------------------------ planning

    def plan_of(self, values: Mapping[str, Any]) -> Plan:
        """The plan of one proposal. Raises UserError when it cannot run."""
        proposals = [choice_of(values, self.method.places)]
        return make_plan(self.config, self.source_dir, proposals, include=False, files=self._files)

    def plan(self, more: Sequence[Proposal] = ()) -> Plan:
        """The plan of all trials so far, and of proposals that are not written yet.

        A trial that the file (it may have changed) does not take any more is left out: its
        points are dropped, not cancelled.
        """
        values = [t.values for t in self.trials if not t.refused] + [p.values for p in more]
        proposals = [choice_of(one) for one in values if self._can_run(one)]
        return make_plan(self.config, self.source_dir, proposals, files=self._files)

    def _can_run(self, values: Mapping[str, Any]) -> bool:
        """Whether a proposal can be planned; remembered, for the file does not change."""
        name = name_of(values)
        if name not in self._runs:
            try:
                self.plan_of(values)
                self._runs[name] = True
            except UserError:
                self._runs[name] = False
        return self._runs[name]

    # ------------------------------------------------------------------ a running sweep

    def begin(self, adopt: bool = True) -> Plan:
        """The plan to start from: all trials, and finished runs of the folder that fit.

        Called with the folder to oneself, for it writes to the ledger.

        Args:
            adopt: False leaves finding finished runs to the controller that is at work.
        """
        if self._stopped:
            self._go_on()
        self.read()
        fresh = self._adoptable() if adopt else []
        if fresh:
            self._propose(fresh)
        return self.plan()

    def _go_on(self) -> None:
        """Take a cancelled search up again, with the points that were cancelled with it.

        Points that were cancelled by themselves before stay so, as those of a grid do.
        """
        again: list[dict[str, Any]] = [{"event": GOES_ON}]
        states = read_states(self.sweep) if self.sweep.plan_path.exists() else {}
        with_it = _cancelled_with_it(self._ledger.read())
        for point_id, state in states.items():
            if state.state == "cancelled" and point_id in with_it:
                number = state.attempt.number if state.attempt else 0
                again.append({"event": "retry", "point": point_id, "after": number})
        self._ledger.append_all(again)
        self.taken_up = len(again) - 1

    def grow(self, states: Mapping[str, PointState]) -> list[PlannedPoint]:
        """Tell what has ended, propose what there is room for, and return the new points.

        They are in the plan in the folder when this returns. Empty when nothing has changed.
        """
        self._stopped = _is_stopped(self._ledger.news(), self._stopped)
        now = tuple(state.state for state in states.values())
        first, same = self._seen is None, self._seen == now
        self._seen = now
        if same or not (self._tell(states) or first):
            return []
        before = len(self.trials)
        more = True
        while more:  # what cannot run is passed over at once
            step = self._next()
            self.finished = step.finished
            more = bool(step.proposals) and self._propose(step.proposals)
        self._summarise()
        return self._extend(states) if len(self.trials) > before else []

    def _next(self) -> Step:
        """What the method wants, unless the search was cancelled."""
        if self._stopped:
            return Step([], "the search was cancelled; the same command takes it up again")
        return self.method.next(self.trials)

    def _tell(self, states: Mapping[str, PointState]) -> bool:
        """Write the outcomes that are news; one that was bad may be tried again, and turn good."""
        told: dict[int, Outcome | None] = {}
        whole = held_by_needs(states.values())
        for trial in self.trials:
            if trial.outcome is not None and (trial.outcome.good or trial.refused):
                continue
            outcome = self.method.outcome(trial, whole, self.sweep)
            if outcome != trial.outcome:
                told[trial.number] = outcome
        write_told(self._ledger, told)
        self.trials = [
            replace(t, outcome=told[t.number]) if t.number in told else t for t in self.trials
        ]
        return bool(told)

    def _propose(self, proposals: Sequence[Proposal]) -> bool:
        """Write proposals as trials; True when some of them cannot run, so that there is room."""
        number = self.trials[-1].number + 1 if self.trials else 0
        made: list[Trial] = []
        refused: dict[int, Outcome | None] = {}
        for i, proposal in enumerate(proposals, number):
            ids: tuple[str, ...] = ()
            try:
                ids = self.method.judged_by(self.plan_of(proposal.values).points)
                reason = "" if ids else "the file excludes this combination"
            except UserError as error:
                reason = error.message
            outcome = Outcome("refused", None, reason) if reason else None
            made.append(Trial(i, proposal.values, ids, proposal.why, outcome))
            if outcome is not None:
                refused[i] = outcome
        write_proposed(self._ledger, made)
        write_told(self._ledger, refused)
        self.trials = [*self.trials, *made]
        return bool(refused)

    def _extend(self, states: Mapping[str, PointState]) -> list[PlannedPoint]:
        """Bring the plan in the folder up to date; the points that the states do not have."""
        plan = self.plan()
        new = [p for p in plan.points if p.id not in states]
        self.sweep.write_plan(plan)
        self._ledger.append_all(
            [{"event": "planned", "point": p.id, "stage": p.stage} for p in new]
        )
        return new

    # ------------------------------------------------------------------ telling people

    def plan_ahead(self, upcoming: bool = False) -> Plan:
        """The plan that `begin` would make, without writing; with `upcoming`, what comes next.

        Raises UserError when a search that has not begun cannot begin: nothing that it would
        propose can run.
        """
        more, coming = self._adoptable(), self._upcoming()
        if coming and not self.trials and not any(self._can_run(p.values) for p in coming):
            self.plan_of(coming[0].values)  # raises, with the place
        return self.plan([*more, *coming] if upcoming else more)

    def _adoptable(self) -> list[Proposal]:
        """Proposals that lead to runs which are finished in the folder already."""
        known = {i for t in self.trials for i in t.points}
        done = [p for p in _finished_runs(self.sweep) if p.id not in known]
        return self.method.adopt(done) if done else []

    def _upcoming(self) -> list[Proposal]:
        """What would be proposed now, once the adopted runs were told."""
        trials = list(self.trials)
        for i, proposal in enumerate(self._adoptable(), len(trials)):
            points = self.plan_of(proposal.values).points
            trial = Trial(i, proposal.values, self.method.judged_by(points), proposal.why)
            states = {p.id: own_state(self.sweep, p, Note()) for p in points}
            outcome = self.method.outcome(trial, states, self.sweep)
            trials.append(replace(trial, outcome=outcome))
        return self.method.next(trials).proposals

    def preview(self) -> list[str]:
        """What there is to say before it begins: the method, the next proposals, the bound."""
        coming = self._upcoming()
        first = "next" if self.trials else "first"
        said = [f"{self.method.title}: {self.method.most()}"]
        said += [f"  {first}: {spelled_values(p.values)} ({p.why})" for p in coming]
        said += self._cost(coming)
        return [*said, *([f"  {self.finished}"] if self.finished else [])]

    def _cost(self, coming: Sequence[Proposal]) -> list[str]:
        """What one proposal and all of them take, by the estimate of the preview."""
        estimator, times = Estimator(), []
        for proposal in coming:
            points = [p for p in self.plan_of(proposal.values).points if p.stage in OWN_STAGES]
            known = [estimator.seconds(p) for p in points]
            times.append(sum(t for t in known if t is not None) if None not in known else None)
        plain = [t for t in times if t is not None]
        if not plain:
            return []
        one = sum(plain) / len(plain)
        bound = self.method.bound()
        return [f"  about {duration(one)} a proposal on one worker, {duration(one * bound)} in all"]

    def refuse_only(self, only: int | None) -> None:
        """Raise UserError for `--only`, which chooses points of a plan that is not there yet."""
        if only is not None:
            text = f"the method {self.config.sweep.method} plans as it goes; lower its own numbers"
            raise UserError(f"{text}, for example with --set", "--only")

    def lines(self) -> list[str]:
        """The answer so far, for the end of a run."""
        return [*self.method.lines(self.trials), *([f"  {self.finished}"] if self.finished else [])]

    def _summarise(self) -> None:
        data = {"schema": 1, "lines": self.lines(), **self.method.to_json(self.trials)}
        write_json(self.sweep.path / SUMMARY, spelled(data), durable=False)


def open_search(config: SweepConfig, sweep: SweepFolder, source_dir: Path) -> Controller | None:
    """The controller of an adaptive sweep; None for any other."""
    return Controller(sweep, config, source_dir) if is_adaptive(config) else None


def _method(config: SweepConfig, sweep: SweepFolder, plan_of: Any) -> Method:
    if config.sweep.method == "bracket":
        from sparrow_lab.sweep.search.bracket_method import BracketMethod

        return BracketMethod(config, sweep, plan_of)
    from sparrow_lab.sweep.search.optuna_method import OptunaMethod

    return OptunaMethod(config)


def stop_search(sweep: SweepFolder) -> bool:
    """Have the search of a sweep propose nothing more; False where there never was one."""
    ledger = Ledger(sweep.ledger_path)
    if not read_trials(ledger.read()):
        return False
    ledger.append(STOPPED)
    return True


def _is_stopped(events: Iterable[Event], before: bool = False) -> bool:
    """Whether the last word on the search is that it was cancelled."""
    for event in events:
        if event["event"] in (STOPPED, GOES_ON):
            before = event["event"] == STOPPED
    return before


def _cancelled_with_it(events: Iterable[Event]) -> set[str]:
    """The points that were cancelled when the search was, or since."""
    found: set[str] = set()
    for event in events:
        if event["event"] == STOPPED:
            found.clear()
        elif event["event"] == "cancelled":
            found.add(str(event.get("point")))
    return found


def _finished_runs(sweep: SweepFolder) -> list[PlannedPoint]:
    """Training points with a result in the folder, whatever plan they were of."""
    found = []
    for result in sorted((sweep.path / "points").glob("*/result.json")):
        folder = sweep.point(result.parent.name)
        if folder.read_result() is not None:
            try:
                point = folder.read_point()
            except UserError:
                continue
            if point.stage == "train":
                found.append(point)
    return found
