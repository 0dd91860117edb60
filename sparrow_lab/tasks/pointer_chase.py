"""Pointer chasing: follow links through a shuffled table, one look-up far back per step.

Prompt: `<bos>`, then `pairs` shuffled links `k > v ;`, then `? s :`. The links form `chains`
chains, each ending in its own label; the asked chain has `hops_min` to `hops_max` links. Answer:
`s > a ; a > b ; ... > L ; # L <eos>`. Only the final label counts. Guessing among the labels in
sight is right with probability 1 / chains, and giving up at once is a way to do so: that is how a
policy collapses here.
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


class PointerChaseParams(BaseModel):
    """Options of the task (`task.params`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pairs: int = Field(16, ge=4, le=len(sym.KEYS))
    chains: int = Field(4, ge=2, le=len(sym.LABELS))
    hops_min: int = Field(2, ge=1)
    hops_max: int = Field(6, ge=1)
    max_hops: int = Field(8, ge=1)
    """Lines of the longest answer that is not cut."""


@dataclass(frozen=True)
class Chase:
    """The answer key of one prompt: `nodes[i]` links to `values[i]`; the asked chain comes
    first."""

    nodes: tuple[int, ...]
    values: tuple[int, ...]
    labels: tuple[int, ...]
    hops: int

    @property
    def label(self) -> int:
        return self.labels[0]


class PointerChase:
    """See the module's docstring."""

    name = "pointer_chase"
    stop_tokens: tuple[int, ...] = (sym.EOS,)

    def __init__(self, config: TaskConfig) -> None:
        self.params = parse_params(PointerChaseParams, config)
        p = self.params
        if p.hops_min > p.hops_max or p.hops_max > p.pairs - p.chains + 1:
            raise UserError(
                f"hops {p.hops_min} to {p.hops_max} do not fit {p.pairs} pairs "
                f"in {p.chains} chains",
                "task.params",
            )
        if p.hops_max > p.max_hops:
            raise UserError(
                f"answers of {p.hops_max} hops do not fit max_hops {p.max_hops}",
                "task.params.hops_max",
            )
        self.max_new_tokens = config.max_new_tokens or 4 * p.max_hops + 4

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """See `Task.prompts`; the source never ends."""
        return [self._prompt(split, seed, i) for i in range(start, start + count)]

    def _prompt(self, split: Split, seed: int, index: int) -> Prompt:
        p = self.params
        rng = prompt_rng(self.name, split, seed, index)
        nodes = sym.KEY0 + rng.permutation(len(sym.KEYS))[: p.pairs]
        labels = sym.LABEL0 + rng.permutation(len(sym.LABELS))[: p.chains]
        hops = int(rng.integers(p.hops_min, p.hops_max + 1))
        # the other chains share the remaining links as evenly as they can
        rest = np.ceil((p.pairs - hops) * np.arange(1, p.chains) / (p.chains - 1)).astype(int)
        ends = np.concatenate([[hops - 1], hops - 1 + rest])
        values = np.roll(nodes, -1)
        values[ends] = labels
        order = rng.permutation(p.pairs)
        tokens = [sym.BOS]
        for i in order:
            tokens += [int(nodes[i]), sym.ARROW, int(values[i]), sym.SEMICOLON]
        tokens += [sym.QUESTION, int(nodes[0]), sym.COLON]
        key = Chase(tuple(nodes.tolist()), tuple(values.tolist()), tuple(labels.tolist()), hops)
        return Prompt(f"{self.name}/{split}/{seed}/{index}", tuple(tokens), key)

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """Right if the answer ends in `# L <eos>` with the label of the asked chain."""
        key: Chase = prompt.answer
        if len(tokens) < 3 or tokens[-1] != sym.EOS or tokens[-3] != sym.HASH:
            return Verdict.UNPARSABLE
        return Verdict.RIGHT if tokens[-2] == key.label else Verdict.WRONG

    def demonstration(
        self, prompt: Prompt, rng: np.random.Generator, wrong: float, give_up: float
    ) -> list[int]:
        """A worked answer with faults: each hop jumps astray with probability `wrong`, and ends
        in a guessed label with probability `give_up`. The faults leave room for learning.
        """
        key: Chase = prompt.answer
        step = dict(zip(key.nodes, key.values, strict=True))
        out: list[int] = []
        node = key.nodes[0]
        while len(out) < self.max_new_tokens - 4:
            if rng.random() < give_up:
                return [*out, sym.HASH, int(rng.choice(key.labels)), sym.EOS]
            value = int(rng.choice(key.nodes)) if rng.random() < wrong else step[node]
            out += [node, sym.ARROW, value, sym.SEMICOLON]
            if value not in step:
                return [*out, sym.HASH, value, sym.EOS]
            node = value
        return out
