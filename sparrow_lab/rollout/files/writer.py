"""Samples that end, into parts, with a line that says how far the rollout is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.files.parts import Parts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EVERY_SAMPLES, EVERY_S = 64, 20.0
"""A part is written after so many samples, or so many seconds."""
TELL_S = 10.0
"""Seconds between two lines where the same line cannot be written over."""


class Writer:
    """Takes samples as they end.

    Args:
        total: samples that will end.
        say: shows the line of progress.
        often: say it at every end; else now and then.
    """

    def __init__(
        self,
        parts: Parts,
        samples: int,
        tokenizer: PreTrainedTokenizerBase,
        stops: tuple[int, ...],
        total: int,
        say: Callable[[str], None],
        often: bool,
    ) -> None:
        self.parts, self.samples, self.tokenizer, self.stops = parts, samples, tokenizer, stops
        self.total, self.say, self.often = total, say, often
        self.rows: list[dict[str, Any]] = []
        self.done = self.tokens = 0
        self.first_prompt = 0
        """Number of the first prompt of the batches that come."""
        self.began = self.wrote = self.told = time.monotonic()

    def ended(self, numbers: list[int], batch: RolloutBatch) -> None:
        """Take samples that have just ended; see `PagedEngine.generate`."""
        for s in numbers:
            n = int(batch.generated_N[s])
            tokens = batch.tokens_NT[s, :n].tolist()
            prompt, sample = divmod(s, self.samples)
            prompt += self.first_prompt
            self.rows.append(
                {
                    "prompt": prompt,
                    "sample": sample,
                    "tokens": tokens,
                    "finished": bool(batch.finished_N[s]),
                    "logp": batch.logp_NT[s, :n].tolist(),
                    "raw_logp": batch.raw_logp_NT[s, :n].tolist(),
                    "attended": batch.attended_NT[s, :n].tolist(),
                    "text": str(self.tokenizer.decode([t for t in tokens if t not in self.stops])),
                }
            )
            self.tokens += n
        self.done += len(numbers)
        now = time.monotonic()
        if len(self.rows) >= EVERY_SAMPLES or now - self.wrote > EVERY_S:
            self.flush()
            self.wrote = now
        if self.often or now - self.told > TELL_S or self.done == self.total:
            self.say(self._line(now - self.began))
            self.told = now

    def flush(self) -> None:
        """Write what has ended so far."""
        self.parts.add(self.rows)
        self.rows = []

    def _line(self, seconds: float) -> str:
        line = f"{self.done}/{self.total} samples, {self.tokens / max(seconds, 1e-9):,.0f} tokens/s"
        if self.done == self.total:
            return line
        left = seconds / self.done * (self.total - self.done)
        return f"{line}, about {_time(left)} left"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
