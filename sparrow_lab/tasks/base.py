"""What every task offers: prompts by split and a verdict for each answer.

A task makes its prompts from a split's name, a seed and an index, so that any slice
can be made again after a restart, and the splits are disjoint by construction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

Split = Literal["calibrate", "verify", "train", "evaluate"]
"""calibrate chooses schedules, verify re-measures them, train and evaluate are what they say."""

SPLITS: tuple[Split, ...] = ("calibrate", "verify", "train", "evaluate")


class Verdict(StrEnum):
    """The one of five outcomes that a reward check has; each is counted."""

    RIGHT = "right"
    WRONG = "wrong"
    UNPARSABLE = "unparsable"
    TIMEOUT = "timeout"
    CRASH = "crash"

    @property
    def reward(self) -> float:
        """1 for a right answer, 0 for everything else."""
        return 1.0 if self is Verdict.RIGHT else 0.0


@dataclass(frozen=True)
class Prompt:
    """One prompt. `tokens` are ids, at least one; `answer` is whatever `judge` needs."""

    id: str
    tokens: tuple[int, ...]
    answer: Any = field(compare=False)


class Task(Protocol):
    """A source of prompts with a verifiable answer."""

    name: str
    max_new_tokens: int
    stop_tokens: tuple[int, ...]

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """Return prompts `start .. start + count - 1` of a split; the same every time.

        Raises UserError when a finite source holds fewer than asked for and may not repeat.
        """
        ...

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """Judge generated ids (prompt excluded, stop token included if it was generated)."""
        ...
