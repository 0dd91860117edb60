"""A rollout of any size through a batch of bounded size: some prompts after the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.files.writer import Writer
from sparrow_lab.rollout.paged.engine import PagedEngine

Ints = npt.NDArray[np.int64]

TOKENS = 1 << 25
"""Places for generated tokens in one batch: about 1 GB of host memory."""


def windows(prompts: int, samples: int, cap: int) -> Iterator[tuple[int, int]]:
    """Ranges of prompts whose samples have room in one batch; one prompt at least."""
    many = max(1, TOKENS // (samples * cap))
    for first in range(0, prompts, many):
        yield first, min(first + many, prompts)


def generate_missing(
    engine: PagedEngine,
    prompts: Sequence[Sequence[int]],
    samples: int,
    rollout: RolloutConfig,
    writer: Writer,
    only: Ints,
    *,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
    seed: int,
) -> None:
    """Generate the samples that `only` numbers, over all prompts, and hand each to the writer.

    Which window a sample is in changes nothing in it.

    Raises:
        UserError: any prompt is too long, before the first is begun.
    """
    engine.check(prompts, samples, max_new_tokens)
    for first, last in windows(len(prompts), samples, max_new_tokens):
        numbers = np.arange(first * samples, last * samples, dtype=np.int64)
        here = np.flatnonzero(np.isin(numbers, only))
        if not len(here):
            continue
        writer.first_prompt = first
        engine.generate(
            prompts[first:last],
            samples,
            rollout,
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            seed=seed,
            sample_ids=numbers,
            keep_hidden=False,
            only=here,
            on_end=writer.ended,
        )
