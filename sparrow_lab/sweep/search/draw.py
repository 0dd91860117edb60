"""Random draws from a search space, each by its own number: more draws keep the earlier ones."""

from __future__ import annotations

import hashlib
import math
import random
from typing import Any

from sparrow_lab.config.grid import Choice
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.config.space import Dim, Range, choice_of, read_space


def draws(config: SweepConfig) -> list[Choice]:
    """The draws of a sweep of the method random; none for other methods.

    Equal draws of a small space stay: they are the same points.
    """
    if config.sweep.method != "random":
        return []
    space = read_space(config)
    places = {dim.path: dim.where for dim in space}
    settings = config.sweep.random
    return [
        choice_of({dim.path: draw(dim, settings.seed, i) for dim in space}, places)
        for i in range(settings.draws)
    ]


def draw(dim: Dim, seed: int, number: int) -> Any:
    """The value of one dimension in draw `number`; it depends on nothing else in the space."""
    dice = random.Random(seed_of(seed, number, dim.path))
    if not isinstance(dim, Range):
        return dim.values[dice.randrange(len(dim.values))]
    if dim.whole or dim.step is not None:
        if dim.log:
            low, high = math.log(dim.low - 0.5), math.log(dim.high + 0.5)
            return dim.tidy(min(dim.high, max(dim.low, round(math.exp(dice.uniform(low, high))))))
        step = dim.step or 1
        return dim.tidy(dim.low + dice.randrange(round((dim.high - dim.low) / step) + 1) * step)
    if dim.log:
        return dim.tidy(math.exp(dice.uniform(math.log(dim.low), math.log(dim.high))))
    return dim.tidy(dice.uniform(dim.low, dim.high))


def seed_of(*parts: Any) -> int:
    """A seed of 32 bits from anything that has a text; the same on every machine."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
