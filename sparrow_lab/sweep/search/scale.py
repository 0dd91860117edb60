"""The line that a bracket is narrowed on: collapse to the left, stability to the right."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparrow_lab.config.methods import BracketConfig
from sparrow_lab.config.space import Range

MOST_CANDIDATES = 128


@dataclass(frozen=True)
class Scale:
    """Values as positions `at(value)`; a larger position is further from collapse."""

    field: Range
    width: float
    sign: int

    @classmethod
    def of(cls, field: Range, config: BracketConfig) -> Scale:
        """The scale of a bracket."""
        return cls(field, config.width, 1 if config.collapses == "below" else -1)

    def at(self, value: float) -> float:
        """The position of a value."""
        return self.sign * (math.log(value) if self.field.log else value)

    def value(self, position: float) -> float:
        """The value nearest to a position that can be written with few digits."""
        plain = self.sign * position
        value = math.exp(plain) if self.field.log else plain
        if self.field.whole:
            value = round(value)
        elif self.field.log:
            value = float(f"{value:.{max(2, 2 + _places(self.width))}g}")
        else:
            value = round(value, max(0, 1 + _places(self.width)))
        value = min(self.field.high, max(self.field.low, value))
        return int(value) if self.field.whole else float(value)

    def gap(self, a: float, b: float) -> float:
        """How far two values lie apart, in the unit of `width`."""
        low, high = min(a, b), max(a, b)
        return high / low - 1 if self.field.log else high - low

    def reached(self, a: float, b: float) -> bool:
        """Whether two values are as near to each other as was asked for."""
        return self.gap(a, b) <= self.width * (1 + 1e-9)

    def between(self, a: float, b: float) -> list[float]:
        """Values strictly between two, evenly spread, at most half a width apart if possible."""
        parts = min(MOST_CANDIDATES, max(2, math.ceil(2 * self.gap(a, b) / self.width)))
        left, right = sorted((self.at(a), self.at(b)))
        steps = [left + (right - left) * i / parts for i in range(1, parts)]
        found = dict.fromkeys(self.value(position) for position in steps)
        return [v for v in found if left < self.at(v) < right]

    @property
    def ends(self) -> tuple[float, float]:
        """The end that should collapse, and the one that should be stable."""
        low, high = (int(x) if self.field.whole else x for x in (self.field.low, self.field.high))
        return (low, high) if self.sign > 0 else (high, low)


def _places(width: float) -> int:
    """Decimal places down to the first digit of a width: 2 for 0.02."""
    return max(0, -math.floor(math.log10(width)))
