"""Settings of the search methods of the `sweep:` section: random, optuna, bracket.

None of them can change the result of a point, so none enters an id.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sparrow_lab.config.strict import Strict


class Dimension(Strict):
    """What one field of the search space may be: a range, or a list of choices."""

    low: float | None = None
    high: float | None = None
    log: bool = False
    """Draw evenly in the logarithm."""
    step: float | None = Field(None, gt=0)
    """Only low, low + step, low + 2 step, ...; the last one is `high`."""
    choices: list[Any] | None = None
    """Values of any kind, schedules too; they have no order."""

    @model_validator(mode="after")
    def _one_form(self) -> Dimension:
        if self.choices is not None:
            if self.low is not None or self.high is not None or self.log or self.step is not None:
                raise ValueError("give 'choices' or a range ('low' and 'high'), not both")
            if not self.choices:
                raise ValueError("'choices' is empty")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give both 'low' and 'high', or 'choices'")
        if self.low >= self.high:
            raise ValueError(f"'low' is {self.low:g} and 'high' {self.high:g}: low must be less")
        if self.log and self.low <= 0:
            raise ValueError(f"'log' needs a 'low' above 0, found {self.low:g}")
        if self.log and self.step is not None:
            raise ValueError("'log' and 'step' exclude each other")
        if self.step is not None and not _whole((self.high - self.low) / self.step):
            raise ValueError(f"'high' is not reached from 'low' in whole steps of {self.step:g}")
        return self


class RandomConfig(Strict):
    """Independent draws from the space; more draws under the same seed keep the earlier ones."""

    draws: int = Field(20, ge=1)
    seed: int = Field(0, ge=0)


class OptunaConfig(Strict):
    """Proposals by one of Optuna's samplers, which learns from the results so far."""

    sampler: Literal["tpe", "gp", "random", "brute_force"] = "tpe"
    """tpe: Parzen trees; gp: Gaussian process; brute_force: every combination of a finite space."""
    trials: int = Field(20, ge=1)
    """Proposals in all; raise it later to go on."""
    concurrent: int = Field(2, ge=1)
    """Proposals under way at once: each of them is made without the results of the others."""
    startup: int = Field(8, ge=1)
    """tpe, gp: the first proposals are random draws."""
    seed: int = Field(0, ge=0)
    stage: Literal["calibrate", "schedule", "train", "evaluate"] | None = None
    """The stage whose result is judged; null takes the last stage of the sweep."""
    metric: str = Field("evaluate/reward", min_length=1)
    """A metric of that stage's result."""
    direction: Literal["maximize", "minimize"] = "maximize"
    across: Literal["mean", "median", "min", "max"] = "mean"
    """How the values at the combinations of the axes (seeds, models) become the one value."""


class BracketConfig(Strict):
    """Narrow one field to the place where training begins to collapse.

    Runs are judged by `verdict:`. A level collapses when at least `share` of its seeds do; seeds
    that can no longer change that are not run.
    """

    field: str = Field(min_length=1)
    """The ordered field, for example sparsity.schedule.tau."""
    low: float
    high: float
    """The ends: one is expected to collapse, the other to be stable."""
    width: float = Field(gt=0)
    """Stop when the ends are no further apart; with scale log, as a share of the lower end."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**32)]] = Field(default=[0, 1, 2], min_length=1)
    """Training runs of a level, at most."""
    share: float = Field(0.5, gt=0, le=1)
    collapses: Literal["below", "above"] = "below"
    """On which side of the threshold runs collapse: below for a tau, above for a learning rate."""
    scale: Literal["linear", "log"] = "linear"
    at_once: int = Field(1, ge=1)
    """Levels tried at the same time: 1 needs the fewest runs, more need less time."""

    @model_validator(mode="after")
    def _ordered(self) -> BracketConfig:
        if self.low >= self.high:
            raise ValueError(f"'low' is {self.low:g} and 'high' {self.high:g}: low must be less")
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f"the scale 'log' needs a 'low' above 0, found {self.low:g}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed is given twice")
        return self


def _whole(number: float) -> bool:
    return math.isclose(number, round(number), rel_tol=1e-9, abs_tol=1e-9)
