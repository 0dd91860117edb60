"""Permutation walk: a long, regular chain of thought with one far look-up per line.

Prompt: `<bos>`, then the `pairs` shuffled links `k > v ;` of a random permutation, then
`? s n :`. Answer: n lines `<step> <then> k > v ; c` (v = successor of k, the next k = v, c counts
down to 0), then `# L <eos>` with the label that the last key stands for. About 180 tokens, of
which one in seven is a look-up: acceptance falls with length, so schedules can hold tau.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.tasks import symbols as sym
from sparrow_lab.tasks.base import Prompt, Split, Verdict
from sparrow_lab.tasks.params import parse_params
from sparrow_lab.tasks.splits import prompt_rng

LINE = 7
"""Tokens of a line; length bins that are multiples of it hold whole lines."""


class PermutationWalkParams(BaseModel):
    """Options of the task (`task.params`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pairs: int = Field(24, ge=2, le=len(sym.KEYS))
    steps_min: int = Field(22, ge=1, le=len(sym.COUNTS) - 1)
    steps_max: int = Field(28, ge=1, le=len(sym.COUNTS) - 1)
    tolerance: float = Field(0.8, gt=0, le=1)
    """Share of lines that must be right; the label must fit the walk that was written."""
    labels: int = Field(4, ge=2, le=len(sym.LABELS))


@dataclass(frozen=True)
class Walk:
    """The answer key of one prompt."""

    successor: dict[int, int]
    start: int
    steps: int


class PermutationWalk:
    """See the module's docstring."""

    name = "permutation_walk"
    stop_tokens: tuple[int, ...] = (sym.EOS,)

    def __init__(self, config: TaskConfig) -> None:
        self.params = parse_params(PermutationWalkParams, config)
        if self.params.steps_min > self.params.steps_max:
            raise UserError(
                f"steps_min {self.params.steps_min} is above steps_max {self.params.steps_max}",
                "task.params.steps_min",
            )
        self.max_new_tokens = config.max_new_tokens or LINE * (self.params.steps_max + 2) + 4

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """See `Task.prompts`; the source never ends."""
        return [self._prompt(split, seed, i) for i in range(start, start + count)]

    def _prompt(self, split: Split, seed: int, index: int) -> Prompt:
        p = self.params
        rng = prompt_rng(self.name, split, seed, index)
        nodes = sym.KEY0 + rng.permutation(len(sym.KEYS))[: p.pairs]
        values = rng.permutation(nodes)
        steps = int(rng.integers(p.steps_min, p.steps_max + 1))
        tokens = [sym.BOS]
        for i in rng.permutation(p.pairs):
            tokens += [int(nodes[i]), sym.ARROW, int(values[i]), sym.SEMICOLON]
        start = int(nodes[0])
        tokens += [sym.QUESTION, start, sym.COUNT0 + steps, sym.COLON]
        key = Walk(dict(zip(nodes.tolist(), values.tolist(), strict=True)), start, steps)
        return Prompt(f"{self.name}/{split}/{seed}/{index}", tuple(tokens), key)

    def _label(self, node: int) -> int:
        return sym.LABEL0 + (node - sym.KEY0) % self.params.labels

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """Unparsable without `# L <eos>` after exactly n lines; right if enough lines are right
        and the label fits the last value that was written.
        """
        key: Walk = prompt.answer
        end = LINE * key.steps
        if len(tokens) != end + 3 or tokens[end] != sym.HASH or tokens[-1] != sym.EOS:
            return Verdict.UNPARSABLE
        previous, good = key.start, 0
        for i in range(key.steps):
            _, _, k, _, v, _, count = tokens[LINE * i : LINE * (i + 1)]
            expected = sym.COUNT0 + key.steps - 1 - i
            good += k == previous and key.successor.get(k) == v and count == expected
            previous = v
        if previous not in key.successor or tokens[-2] != self._label(previous):
            return Verdict.WRONG
        enough = good >= self.params.tolerance * key.steps - 1e-9
        return Verdict.RIGHT if enough else Verdict.WRONG

    def demonstration(
        self, prompt: Prompt, rng: np.random.Generator, wrong: float, give_up: float
    ) -> list[int]:
        """A worked answer whose lines jump astray with probability `wrong` and which stops early,
        with a guessed label, with probability `give_up` a line.
        """
        key: Walk = prompt.answer
        nodes = list(key.successor)
        out: list[int] = []
        node = key.start
        for i in range(key.steps):
            if rng.random() < give_up:
                label = sym.LABEL0 + int(rng.integers(self.params.labels))
                return [*out, sym.HASH, label, sym.EOS]
            value = int(rng.choice(nodes)) if rng.random() < wrong else key.successor[node]
            count = sym.COUNT0 + key.steps - 1 - i
            out += [sym.STEP, sym.THEN, node, sym.ARROW, value, sym.SEMICOLON, count]
            node = value
        return [*out, sym.HASH, self._label(node), sym.EOS]
