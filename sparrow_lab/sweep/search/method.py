"""What a search method is to the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep.search.trials import Outcome, Proposal, Step, Trial
from sparrow_lab.sweep.states import PointState


class Planner(Protocol):
    """Plans what one proposal needs, without writing anything."""

    def __call__(self, values: Mapping[str, Any]) -> Plan:
        """Raises UserError for a configuration that cannot run."""


class Method(Protocol):
    """A search: a pure function of the trials so far, and of the files of finished points."""

    @property
    def title(self) -> str:
        """`optuna (tpe)`."""

    @property
    def places(self) -> Mapping[str, str]:
        """Where the fields that it sets are written, by dotted path."""

    def next(self, trials: Sequence[Trial]) -> Step:
        """What to run next, given all trials so far."""

    def judged_by(self, points: Sequence[PlannedPoint]) -> tuple[str, ...]:
        """Of the points of a proposal, the ids of those whose ends decide its outcome."""

    def outcome(
        self, trial: Trial, states: Mapping[str, PointState], sweep: SweepFolder
    ) -> Outcome | None:
        """How a trial ended; None while it is under way."""

    def adopt(self, done: Sequence[PlannedPoint]) -> list[Proposal]:
        """Proposals that would lead to finished points that no trial has led to yet.

        Args:
            done: finished training points of the sweep's folder, of whatever plan.
        """

    def most(self) -> str:
        """How much work the search is at most, for the preview."""

    def bound(self) -> int:
        """Proposals at most, reckoned from nothing."""

    def lines(self, trials: Sequence[Trial]) -> list[str]:
        """The answer so far, in words."""

    def to_json(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """The answer so far, for `search.json`."""
