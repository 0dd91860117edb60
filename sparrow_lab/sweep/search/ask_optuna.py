"""Asking Optuna for the next trial: the study is made anew from the trials, in memory.

Every proposal has a sampler of its own, seeded by the number of the trial. So it depends on the
trials before it and on nothing else: a search that was killed goes on as if it had not been.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sparrow_lab.config.methods import OptunaConfig
from sparrow_lab.config.space import MOST_COMBINATIONS, Dim, Options, Range, name_of, size_of
from sparrow_lab.sweep.search.draw import seed_of
from sparrow_lab.sweep.search.trials import Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler

ATTEMPTS = 8
"""So often another proposal is asked for when one was made before."""


class Asker:
    """One study over a space, filled with trials.

    Args:
        space: the dimensions.
        settings: of the search.
        trials: all that count; those that are still open are taken as under way.
    """

    def __init__(
        self, space: Sequence[Dim], settings: OptunaConfig, trials: Iterable[Trial]
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self.settings = space, settings
        self.tried: set[str] = set()
        self._distributions = {dim.path: _distribution(dim) for dim in space}
        self._study: Study = optuna.create_study(
            direction=settings.direction, sampler=optuna.samplers.RandomSampler(seed=0)
        )
        for trial in trials:
            self._add(trial)

    def ask(self, number: int) -> dict[str, Any]:
        """The values of trial `number`, which then counts as under way.

        One that was made before is asked for again under another seed; where that does not
        help in a finite space, and for brute force, a combination that was never tried is drawn.
        """
        values: dict[str, Any] = {}
        attempts = 0 if self.settings.sampler == "brute_force" else ATTEMPTS
        for attempt in range(attempts):
            values = self._ask_once(seed_of(self.settings.seed, number, attempt))
            if name_of(values) not in self.tried:
                break
        else:
            left = [v for v in _all(self.space) if name_of(v) not in self.tried]
            if left:
                values = random.Random(seed_of(self.settings.seed, number, "left")).choice(left)
        self._add(Trial(number, values))
        return values

    def used_up(self) -> bool:
        """Whether every combination of a finite space has been proposed."""
        size = size_of(self.space)
        return size <= MOST_COMBINATIONS and len(self.tried) >= size

    def _ask_once(self, seed: int) -> dict[str, Any]:
        import optuna

        self._study.sampler = _sampler(self.settings, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            trial = self._study.ask(self._distributions)
        # The trial stays in this throw-away study as failed, which samplers pass over.
        self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return {dim.path: _decoded(dim, trial.params[dim.path]) for dim in self.space}

    def _add(self, trial: Trial) -> None:
        from optuna.trial import TrialState, create_trial

        state, value = TrialState.RUNNING, None
        if trial.outcome is not None:
            value = trial.outcome.value if trial.outcome.kind == "done" else None
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
        self.tried.add(name_of(trial.values))
        params = {dim.path: _encoded(dim, trial.values[dim.path]) for dim in self.space}
        self._study.add_trial(
            create_trial(params=params, distributions=self._distributions, state=state, value=value)
        )


def fits(space: Sequence[Dim], values: Mapping[str, Any]) -> bool:
    """Whether a trial has a value in every dimension, and no others."""
    paths = {dim.path for dim in space}
    return values.keys() == paths and all(dim.holds(values[dim.path]) for dim in space)


def _all(space: Sequence[Dim]) -> list[dict[str, Any]]:
    """Every combination of a space that is small enough; else nothing."""
    if size_of(space) > MOST_COMBINATIONS:
        return []
    lists = [
        list(dim.values)
        if isinstance(dim, Options)
        else [dim.tidy(dim.low + i * (dim.step or 1)) for i in range(int(size_of([dim])))]
        for dim in space
    ]
    return [{d.path: v for d, v in zip(space, row, strict=True)} for row in product(*lists)]


def _distribution(dim: Dim) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(dim, Options):
        return CategoricalDistribution([name_of(value) for value in dim.values])
    if dim.whole:
        return IntDistribution(int(dim.low), int(dim.high), log=dim.log, step=int(dim.step or 1))
    return FloatDistribution(dim.low, dim.high, log=dim.log, step=dim.step)


def _encoded(dim: Dim, value: Any) -> Any:
    return value if isinstance(dim, Range) else name_of(value)


def _decoded(dim: Dim, param: Any) -> Any:
    if isinstance(dim, Range):
        return dim.tidy(param)
    return next(value for value in dim.values if name_of(value) == param)


def _sampler(settings: OptunaConfig, seed: int) -> BaseSampler:
    import optuna
    from optuna import samplers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match settings.sampler:
            case "tpe":
                return samplers.TPESampler(
                    seed=seed,
                    n_startup_trials=settings.startup,
                    multivariate=True,
                    constant_liar=True,
                )
            case "gp":
                return samplers.GPSampler(seed=seed, n_startup_trials=settings.startup)
            case _:
                return samplers.RandomSampler(seed=seed)
