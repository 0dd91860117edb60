"""Any dataset of reasoning_gym as a task, judged by the dataset's own scorer.

Prompts never run out. Each slot of a split owns a range of raw items and takes the first whose text
hashes to the split: equal questions never lie in two splits, and any slice can be made on its own.
In the measuring splits a question also comes only once; training may see one again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.tasks.base import SPLITS, Prompt, Split, Verdict
from sparrow_lab.tasks.content import EVEN, content_hash, split_of
from sparrow_lab.tasks.gym_source import SEEDS, GymSource
from sparrow_lab.tasks.judge_pool import judge_pool
from sparrow_lab.tasks.params import parse_params
from sparrow_lab.tasks.text import (
    STEP_BY_STEP,
    answer_text,
    chat_tokens,
    final_answer,
    need_tokenizer,
    stop_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STRIDE = 64
"""Raw items of a slot. None of 64 belongs to its split once in 10^8 slots."""

SLOTS = SEEDS // len(SPLITS) // STRIDE
"""Slots of a split, about 8 million; then they start again."""

TRIES = 2_000
"""Items looked at for one slot before the options count as impossible."""

LIMIT_S = 10.0
"""Processor seconds of the dataset's scorer."""

RIGHT = 1.0 - 1e-6
"""The least score of a right answer; partial credit is none."""


class GymParams(BaseModel):
    """The task's own options; every other key of `task.params` goes to the dataset."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    instruction: str = STEP_BY_STEP
    """Follows the question."""
    system: str | None = None
    """System message; null leaves the chat template's own."""
    min_prompt_tokens: int = Field(0, ge=0)
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Items with a shorter or longer prompt are passed over."""


@dataclass
class _Stream:
    """The different questions of a measuring split, found so far."""

    slot: int = 0
    prompts: list[Prompt] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)


class ReasoningGymTask:
    """See the module's docstring.

    Raises:
        UserError: unknown dataset or option, no text tokenizer, or items that differ from one
            making to the next.
    """

    name = "reasoning_gym"

    def __init__(self, config: TaskConfig, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.params = parse_params(GymParams, config)
        self.source = GymSource(config.dataset, dict(self.params.model_extra or {}))
        self.tokenizer = need_tokenizer(tokenizer, self.name)
        self.max_new_tokens = config.max_new_tokens or 1024
        self.stop_tokens = stop_tokens(self.tokenizer)
        self._streams: dict[Split, _Stream] = {}
        if not self.source.reproducible(0):
            raise UserError(
                f"{self.source.dataset} makes another item from the same seed each time, so a run "
                "could not be repeated",
                "task.dataset",
            )

    def prompts(self, split: Split, start: int, count: int, seed: int = 0) -> list[Prompt]:
        """See `Task.prompts`; only training depends on the seed.

        Raises:
            UserError: the options allow too few different questions, or none of the wanted length.
        """
        if split == "train":
            first = seed * 1_000_003 + start
            return [self._prompt(split, (first + i) % SLOTS) for i in range(count)]
        stream = self._streams.setdefault(split, _Stream())
        repeats = 0
        while len(stream.prompts) < start + count:
            prompt = self._prompt(split, stream.slot)
            stream.slot += 1
            if prompt.id not in stream.ids:
                stream.ids.add(prompt.id)
                stream.prompts.append(prompt)
                continue
            repeats += 1
            if repeats > 100 + 10 * len(stream.prompts):
                raise UserError(
                    f"{self.source.dataset} with these options has about {len(stream.prompts)} "
                    f"different questions for '{split}'; asked for {start + count}",
                    "task.params",
                )
        return stream.prompts[start : start + count]

    def _prompt(self, split: Split, slot: int) -> Prompt:
        """The first item of a slot that belongs to the split and has the wanted length."""
        p = self.params
        region = SPLITS.index(split) * SLOTS * STRIDE
        for trial in range(TRIES):
            place = slot * STRIDE + trial
            if trial >= STRIDE:  # past its own items, a slot looks all over the split's region
                place = zlib.crc32(f"{slot}/{trial}".encode()) % (SLOTS * STRIDE)
            entry = self.source.item(region + place)
            digest = content_hash(entry["question"])
            if split_of(digest, EVEN) != split:
                continue
            text = f"{entry['question']}\n\n{p.instruction}".strip()
            tokens = chat_tokens(self.tokenizer, text, p.system)
            if p.min_prompt_tokens <= len(tokens) <= (p.max_prompt_tokens or len(tokens)):
                return Prompt(f"{self.source.dataset}-{digest[:16]}", tokens, entry)
        raise UserError(
            f"none of {TRIES} items of {self.source.dataset} is new to the other splits and has "
            f"{p.min_prompt_tokens} to {p.max_prompt_tokens or 'any number of'} prompt tokens",
            "task.params",
        )

    def judge(self, prompt: Prompt, tokens: Sequence[int]) -> Verdict:
        """See `Task.judge`; an answer without a marked final answer is unparsable."""
        text = answer_text(self.tokenizer, prompt.tokens, tokens, self.stop_tokens)
        return self.judge_text(prompt, text)

    def judge_text(self, prompt: Prompt, text: str) -> Verdict:
        """Judge an answer that is already text."""
        final = final_answer(text)
        if final is None:
            return Verdict.UNPARSABLE
        outcome = judge_pool().run(
            "sparrow_lab.tasks.gym_source:score",
            self.source.dataset,
            self.source.options,
            final,
            prompt.answer,
            limit_s=LIMIT_S,
        )
        if outcome.status != "done":
            return Verdict.TIMEOUT if outcome.status == "timeout" else Verdict.CRASH
        return Verdict.RIGHT if outcome.value >= RIGHT else Verdict.WRONG
