"""The method `optuna`: proposals from a sampler, told by a metric of their points' results."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from sparrow_lab.config.grid import read_grid
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.config.space import read_space
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.search.ask_optuna import Asker, fits
from sparrow_lab.sweep.search.outcome import value_outcome
from sparrow_lab.sweep.search.trials import Outcome, Proposal, Step, Trial, spelled_values
from sparrow_lab.sweep.states import PointState

HOPELESS = 3
"""So many trials that ended without a value, and none with one, end the search."""

MOST_REFUSED = 30
"""So many proposals in a row that cannot run end it too: the space has next to nothing else."""


class OptunaMethod:
    """See `ask_optuna` for how a proposal is made.

    Trials in the ledger that do not lie in the space of the present file (its ranges or choices
    were changed) stay in the plan, but count for nothing here.
    """

    def __init__(self, config: SweepConfig) -> None:
        self.settings = config.sweep.optuna
        self.space = read_space(config)
        self.places = {dim.path: dim.where for dim in self.space}
        self.stage = self.settings.stage or config.stages[-1]
        self.title = f"optuna ({self.settings.sampler})"
        self._combinations = 1
        for axis in read_grid(config).axes:
            self._combinations *= len(axis.choices)

    def next(self, trials: Sequence[Trial]) -> Step:
        """Proposals up to `concurrent` under way and `trials` in all."""
        mine = self._mine(trials)
        under_way = sum(t.open for t in mine)
        why = self._hopeless(mine)
        if why:
            return Step([], why)
        count = sum(not t.refused for t in mine)
        if count >= self.settings.trials:
            return Step([], "" if under_way else f"all {count} trials have ended")
        room = min(self.settings.trials - count, self.settings.concurrent - under_way)
        if room <= 0:
            return Step()
        asker = Asker(self.space, self.settings, mine)
        number = trials[-1].number + 1 if trials else 0
        step = Step()
        for i in range(number, number + room):
            if asker.used_up():
                ended = not under_way and not step.proposals
                return Step([], "every combination was tried") if ended else step
            step.proposals.append(Proposal(asker.ask(i), self._why(mine)))
        return step

    def judged_by(self, points: Sequence[PlannedPoint]) -> tuple[str, ...]:
        """The points of the stage that is judged."""
        return tuple(p.id for p in points if p.stage == self.stage)

    def outcome(
        self, trial: Trial, states: Mapping[str, PointState], sweep: SweepFolder
    ) -> Outcome | None:
        """The value of a trial."""
        return value_outcome(trial, states, self.settings)

    def adopt(self, done: Sequence[PlannedPoint]) -> list[Proposal]:
        """Nothing: a sampler is told what it proposed."""
        return []

    def most(self) -> str:
        """`at most 20 trials, each at 2 combinations of the axes; 2 at once`."""
        s = self.settings
        each = f", each at {self._combinations} combinations of the axes"
        axes = each if self._combinations > 1 else ""
        return f"at most {s.trials} trials{axes}; {s.concurrent} at once"

    def bound(self) -> int:
        """Trials."""
        return self.settings.trials

    def lines(self, trials: Sequence[Trial]) -> list[str]:
        """How many trials ended how, and the best."""
        mine = self._mine(trials)
        done = [t for t in mine if t.outcome is not None and t.outcome.good]
        bad = [t for t in mine if t.outcome is not None and not t.outcome.good and not t.refused]
        refused = sum(t.refused for t in mine)
        said = [f"{self.title}: {len(done)} of {self.settings.trials} trials have a value"]
        if len(mine) < len(trials):
            said.append(f"  {len(trials) - len(mine)} earlier trials lie outside the present space")
        if bad:
            reason = bad[0].outcome.reason if bad[0].outcome else ""
            said.append(f"  {len(bad)} have none, for example trial {bad[0].number}: {reason}")
        if refused:
            said.append(f"  {refused} proposals cannot run and were passed over")
        best = self.best(mine)
        if best is not None and best.outcome is not None:
            what = f"{self.settings.metric} {best.outcome.value:.4g}"
            values = [float(t.outcome.value or 0) for t in done if t.outcome]
            middle = f", median {statistics.median(values):.4g}" if len(values) > 2 else ""
            said.append(f"  best: {what} with {spelled_values(best.values)}{middle}")
        return said

    def to_json(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """{"method", "metric", "direction", "best", "trials": [...]}."""
        mine = self._mine(trials)
        best = self.best(mine)
        return {
            "method": "optuna",
            "sampler": self.settings.sampler,
            "metric": self.settings.metric,
            "direction": self.settings.direction,
            "best": None if best is None else best.number,
            "trials": [
                {
                    "number": t.number,
                    "values": t.values,
                    "points": list(t.points),
                    "kind": t.outcome.kind if t.outcome else None,
                    "value": t.outcome.value if t.outcome else None,
                }
                for t in mine
            ],
        }

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """The trial with the best value; the earliest of equals; None when none has a value."""
        valued = [t for t in trials if t.outcome is not None and t.outcome.kind == "done"]
        sign = 1 if self.settings.direction == "maximize" else -1
        return max(
            valued,
            key=lambda t: (sign * float(t.outcome.value or 0) if t.outcome else 0, -t.number),
            default=None,
        )

    def _mine(self, trials: Sequence[Trial]) -> list[Trial]:
        return [t for t in trials if fits(self.space, t.values)]

    def _hopeless(self, mine: Sequence[Trial]) -> str:
        tail = [t.outcome for t in mine[-MOST_REFUSED:] if t.outcome is not None and t.refused]
        if len(tail) == MOST_REFUSED:
            return f"{MOST_REFUSED} proposals in a row cannot run: {tail[-1].reason}"
        ended = [t.outcome for t in mine if t.outcome is not None and not t.refused]
        if len(ended) < HOPELESS or any(outcome.good for outcome in ended):
            return ""
        return f"the first {len(ended)} trials have no value: {ended[-1].reason}"

    def _why(self, mine: Sequence[Trial]) -> str:
        values = sum(t.outcome is not None and t.outcome.good for t in mine)
        learns = self.settings.sampler in ("tpe", "gp") and values >= self.settings.startup
        return f"{self.settings.sampler}, {values} values known" if learns else "a first draw"
