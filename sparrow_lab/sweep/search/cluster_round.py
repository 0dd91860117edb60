"""One look of a controller at a cluster: tell, propose, submit what may start. Under the lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.launch import MOST_INTERRUPTIONS
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.search.controller import Controller
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.states import ON_CLUSTER, PointState, held_by_needs, read_states

if TYPE_CHECKING:
    from rich.console import Console

    from sparrow_lab.sweep.slurm.cluster import Cluster


PATIENCE = 20
"""Points that stay planned though they were handed over wait for others of the same run; they are
looked at again after so many rounds."""


class Passing(Exception):
    """The cluster does not answer at present; the next round may do better."""


@dataclass
class Rounds:
    """The rounds of one controller; it remembers only how often it submitted a point again."""

    sweep: SweepFolder
    search: Controller
    cluster: Cluster
    options: Options
    console: Console
    stages: Mapping[str, str] | None = None
    _again: Counter[str] = field(default_factory=Counter)
    _wanted: frozenset[str] = frozenset()
    _quiet: int = 0

    def play(self) -> bool:
        """One round; False when the search has ended and nothing is on its way any more.

        Raises:
            UserError: the cluster refuses, or the budget is used up; what was not submitted
                stays planned.
            Passing: the cluster does not answer.
        """
        queue = read_queue()
        if queue.error:
            raise Passing(queue.error)
        self.search.read()  # whoever held the lease before may have written more
        states = self._hopeful(read_states(self.sweep, ask=lambda: queue))
        new = self.search.grow(states)
        if new:
            states = self._hopeful(read_states(self.sweep, ask=lambda: queue))
        wanted = frozenset(i for i, s in states.items() if s.state == "planned")
        self._quiet = self._quiet + 1 if wanted == self._wanted else 0
        self._wanted = wanted
        if wanted and self._quiet % PATIENCE == 0:
            self._again.update(wanted - {p.id for p in new})
            options = replace(self.options, only=wanted)
            self._submit(options)
        busy = any(s.state in ON_CLUSTER for s in states.values())
        return bool(wanted) or busy or not self.search.finished

    def _submit(self, options: Options) -> None:
        try:
            self.cluster.submit(self.sweep, options, self.console, self.stages)
        except UserError as error:
            cause = error.__cause__
            if isinstance(cause, SlurmError) and cause.passing:
                raise Passing(str(error)) from error
            raise

    def _hopeful(self, states: Mapping[str, PointState]) -> dict[str, PointState]:
        """Points whose jobs vanished count as planned while they may be submitted again.

        Whatever waits for them then waits on, instead of being held.
        """
        limits = {"lost": self.options.retries, "interrupted": MOST_INTERRUPTIONS}
        plain = {}
        for point_id, state in states.items():
            limit = limits.get(state.state, 0)
            if state.state == "failed" and state.log is not None:
                limit = self.options.retries  # its worker never began, so nothing tried it again
            waits = state.state == "held" and _waits_only(state, states)
            if waits or self._again[point_id] < limit:
                state = PointState(state.point, "planned")
            plain[point_id] = state
        return held_by_needs(plain.values())


def _waits_only(state: PointState, states: Mapping[str, PointState]) -> bool:
    """Whether it is held for what it needs, and not by a fault of its own stage."""
    needs = (states[i] for i in state.point.needs.values() if i in states)
    return state.attempt is None and any(n.state in ("lost", "held") for n in needs)
