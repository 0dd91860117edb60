"""The method `bracket`: one bracket for every combination of the axes, each narrowed on its own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparrow_lab.config.fields import lookup
from sparrow_lab.config.grid import read_grid
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.config.space import name_of, read_bracket, values_of
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.sweep.search.bracket import Narrowed, narrow
from sparrow_lab.sweep.search.keys import run_key
from sparrow_lab.sweep.search.levels import Level, Quorum
from sparrow_lab.sweep.search.method import Planner
from sparrow_lab.sweep.search.outcome import verdict_outcome
from sparrow_lab.sweep.search.scale import Scale
from sparrow_lab.sweep.search.trials import Outcome, Proposal, Step, Trial
from sparrow_lab.sweep.states import PointState

ADOPTED = "finished before"
"""Why a trial is there that the search did not ask for."""


@dataclass(frozen=True)
class Group:
    """One combination of the axes, with its name for people."""

    values: dict[str, Any]
    name: str


class BracketMethod:
    """See `bracket` for how one bracket is narrowed.

    Args:
        config: of the method bracket.
        sweep: where curves and schedules are found.
        plan: plans a proposal.
    """

    title = "bracket"

    def __init__(self, config: SweepConfig, sweep: SweepFolder, plan: Planner) -> None:
        assert config.sweep.bracket is not None
        self.field = read_bracket(config)
        self.settings = config.sweep.bracket
        self.rule = config.verdict
        self.scale = Scale.of(self.field, self.settings)
        self.quorum = Quorum.of(self.settings.seeds, self.settings.share)
        self.groups = _groups(config)
        self.places = {self.field.path: self.field.where, "seed": self.field.where}
        self._sweep, self._plan = sweep, plan
        self._keys: dict[str, str] = {}

    def next(self, trials: Sequence[Trial]) -> Step:
        """Runs for all brackets that are still too wide."""
        step = Step()
        ends = []
        for group in self.groups:
            found = self.narrowed(group, trials)
            step.proposals.extend(
                Proposal(self._values(group, a.value, a.seed), a.why) for a in found.asks
            )
            ends.append(found.finished)
        return step if not all(ends) else Step([], "every bracket has an end")

    def narrowed(self, group: Group, trials: Sequence[Trial]) -> Narrowed:
        """What is known of one bracket."""
        levels: dict[float, Level] = {}
        for trial in trials:
            place = self._place(group, trial.values)
            if place is None:
                continue
            value, seed = place
            level = levels.setdefault(value, Level(value))
            level.runs[seed] = trial.outcome
            level.begun |= trial.why != ADOPTED

        def key_of(value: float) -> str | None:
            return self._key(group, value)

        return narrow(self.scale, self.quorum, levels, key_of, self.settings.at_once)

    def judged_by(self, points: Sequence[PlannedPoint]) -> tuple[str, ...]:
        """The training run."""
        return tuple(p.id for p in points if p.stage == "train")

    def outcome(
        self, trial: Trial, states: Mapping[str, PointState], sweep: SweepFolder
    ) -> Outcome | None:
        """The verdict on the run."""
        return verdict_outcome(trial, states, sweep, self.rule)

    def adopt(self, done: Sequence[PlannedPoint]) -> list[Proposal]:
        """Finished runs that are a level of a bracket, at one of its seeds."""
        found: dict[str, Proposal] = {}
        keys = lookup(self.field.path, self.field.where)
        wanted = {p.id for p in done}
        seen: set[tuple[float, int]] = set()
        for point in done:
            value: Any = point.config
            for key in (*keys.keys, *((keys.form,) if keys.form else ())):
                value = value.get(key) if isinstance(value, dict) else None
            seed = point.config.get("seed")
            if seed in self.quorum.seeds and self.field.holds(value):
                seen.add((value, int(seed)))
        for group, (value, seed) in itertools.product(self.groups, sorted(seen)):
            values = self._values(group, value, seed)
            try:
                ids = self.judged_by(self._plan(values).points)
            except UserError:
                continue
            if wanted.issuperset(ids) and ids:
                found.setdefault(ids[0], Proposal(values, ADOPTED))
        return list(found.values())

    def most(self) -> str:
        """`about 8 levels of at most 3 seeds for each of 2 brackets: 48 training runs`."""
        brackets = len(self.groups)
        many = f" for each of {brackets} brackets" if brackets > 1 else ""
        text = f"about {self._levels()} levels of at most {len(self.settings.seeds)} seeds{many}"
        return f"{text}: {self.bound()} training runs, fewer where seeds agree"

    def bound(self) -> int:
        """Training runs at most."""
        return self._levels() * len(self.settings.seeds) * len(self.groups)

    def _levels(self) -> int:
        """Levels of one bracket: both ends, and the halvings from there."""
        span = self.scale.gap(self.field.low, self.field.high)
        if self.field.log:
            span = math.log(1 + span) / math.log(1 + self.settings.width)
        else:
            span /= self.settings.width
        return 2 + max(0, math.ceil(math.log2(max(1.0, span))))

    def lines(self, trials: Sequence[Trial]) -> list[str]:
        """One line a bracket, and one for what speaks against it."""
        said = []
        for group in self.groups:
            found = self.narrowed(group, trials)
            sentence = self._sentence(group, found)
            said.append(f"{group.name}: {sentence}" if group.name else sentence)
            said += [
                f"  not monotone: {level.value:g} is stable ({level.text()}) on the side where "
                f"{found.collapsed:g} collapses"
                for level in found.against
            ]
            runs, reused = self._counts(group, trials)
            said.append(
                f"  {runs} training runs" + (f", {reused} found finished" if reused else "")
            )
        return said

    def to_json(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """{"method", "field", "width", "brackets": [...]}."""
        brackets = []
        for group in self.groups:
            runs, reused = self._counts(group, trials)
            found = self.narrowed(group, trials)
            told = found.to_json(self.quorum)
            for level, data in zip(found.levels, told["levels"], strict=True):
                data["p05"] = self._p05(group, level)
            counts = {"runs": runs, "reused": reused}
            brackets.append({"group": group.values, **counts, **told})
        return {
            "method": "bracket",
            "field": self.field.path,
            "width": self.settings.width,
            "brackets": brackets,
        }

    def _sentence(self, group: Group, found: Narrowed) -> str:
        name = self.field.path.rsplit(".", 1)[-1]
        if not found.found:
            return f"{name}: {found.finished or 'the ends are not known yet'}"
        ends = {
            "collapses": (found.collapsed, self._near(found, found.collapsed)),
            "is stable": (found.stable, self._near(found, found.stable)),
        }
        said = ", ".join(
            f"{value:g} {what} ({self._measured(group, level)}{level.text()})"
            for what, (value, level) in ends.items()
        )
        width = self.scale.gap(found.collapsed, found.stable)
        unit = " of the lower" if self.field.log else ""
        end = found.finished or "still being narrowed"
        return f"{name}: {said}; {width:.3g}{unit} apart, {end}"

    def _measured(self, group: Group, level: Level) -> str:
        """`p5 0.431, ` where the level's schedule was measured."""
        p05 = self._p05(group, level)
        return "" if p05 is None else f"p5 {p05:.3f}, "

    def _p05(self, group: Group, level: Level) -> float | None:
        """What a run at this level starts from: p5 of acceptance under its schedule."""
        try:
            points = self._plan(self._values(group, level.value, self.quorum.seeds[0])).points
        except UserError:
            return None
        schedule = next((p.id for p in points if p.stage == "schedule"), "")
        result = self._sweep.point(schedule).followed().read_result() if schedule else None
        value = ((result or {}).get("metrics") or {}).get("acceptance/p05")
        return float(value) if isinstance(value, (int, float)) else None

    def _near(self, found: Narrowed, value: float) -> Level:
        """The level by which an end is known."""
        want = "collapsed" if value == found.collapsed else "stable"
        known = [x for x in found.levels if x.verdict(self.quorum) == want]
        return min(known, key=lambda x: abs(self.scale.at(x.value) - self.scale.at(value)))

    def _counts(self, group: Group, trials: Sequence[Trial]) -> tuple[int, int]:
        """Training runs that were asked for, and those that were found."""
        mine = [t for t in trials if self._place(group, t.values) is not None]
        ids = {i for t in mine if t.why != ADOPTED for i in t.points}
        return len(ids), len({i for t in mine if t.why == ADOPTED for i in t.points} - ids)

    def _values(self, group: Group, value: float, seed: int) -> dict[str, Any]:
        return {**group.values, self.field.path: value, "seed": seed}

    def _place(self, group: Group, values: Mapping[str, Any]) -> tuple[float, int] | None:
        """The value and seed of a trial that belongs to a group; None for one that does not."""
        rest = {k: v for k, v in values.items() if k not in (self.field.path, "seed")}
        value, seed = values.get(self.field.path), values.get("seed")
        if name_of(rest) != name_of(group.values) or seed not in self.quorum.seeds:
            return None
        return (value, int(seed)) if value is not None and self.field.holds(value) else None

    def _key(self, group: Group, value: float) -> str | None:
        """`run_key` of a value; known ones are remembered, for they do not change."""
        name = name_of([group.values, value])
        if name not in self._keys:
            try:
                points = self._plan(self._values(group, value, self.quorum.seeds[0])).points
            except UserError:
                return None
            key = run_key(self._sweep, points) if points else None
            if key is None:
                return None
            self._keys[name] = key
        return self._keys[name]


def _groups(config: SweepConfig) -> list[Group]:
    """Every combination of the axes."""
    groups = []
    for row in itertools.product(*(axis.choices for axis in read_grid(config).axes)):
        values: dict[str, Any] = {}
        for choice in row:
            values.update(values_of(choice))
        parts = [f"{_last(path)}={_short(value)}" for path, value in values.items()]
        groups.append(Group(values, " ".join(parts)))
    return groups


def _last(path: str) -> str:
    """`page_size`; `model` for `model.name`."""
    keys = path.split(".")
    return keys[-2] if keys[-1] == "name" and len(keys) > 1 else keys[-1]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else name_of(value)
