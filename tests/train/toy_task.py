"""A task over a small vocabulary, whose rewards vary for a random model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparrow_lab.tasks.base import SPLITS, Prompt, Split, Verdict
from tests.rollout.small_models import VOCABULARY

STOPS = (3, 7, 11)


class ToyTask:
    """Right if the answer's tokens add up to an even number; keeps a record of what was asked."""

    name = "toy"
    stop_tokens: tuple[int, ...] = STOPS

    def __init__(self, max_new_tokens: int = 7, verdict: Verdict | None = None) -> None:
        self.max_new_tokens = max_new_tokens
        self.always = verdict
        self.asked: list[tuple[Split, int, int, int]] = []

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """Random prompts of 1 to 20 tokens."""
        self.asked.append((split, start, count, seed))
        out = []
        for i in range(start, start + count):
            rng = np.random.default_rng([SPLITS.index(split), seed, i])
            tokens = rng.integers(0, VOCABULARY, rng.integers(1, 21))
            out.append(Prompt(f"toy/{split}/{seed}/{i}", tuple(tokens.tolist()), None))
        return out

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """By the sum of the tokens."""
        if self.always is not None:
            return self.always
        if sum(tokens) % 2 == 0:
            return Verdict.RIGHT
        return Verdict.UNPARSABLE if sum(tokens) % 3 == 0 else Verdict.WRONG
