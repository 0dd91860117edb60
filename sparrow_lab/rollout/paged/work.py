"""What one rollout is asked for, checked for all but its size in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Work:
    """What is asked for, by sample.

    Attributes:
        todo: samples to generate, in order.
        keys: of each sample of the rollout, the key of its noise.
        caps: of each sample, the most tokens.
        stops: [V], True for tokens that end a sample.
        forced: of each sample, the answer to feed; None draws them.
        adapted: of each prompt, whether the model's adapters are on.
    """

    prompts: list[tuple[int, ...]]
    samples: int
    todo: Ints
    keys: Ints
    caps: Ints
    stops: Bools
    forced: Sequence[Sequence[int]] | None
    rollout: RolloutConfig
    seed: int
    adapted: list[bool]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, were every answer as long as it may be."""
        owners = self.todo // self.samples
        lengths = np.array([len(p) for p in self.prompts], np.int64)[owners]
        return int((lengths + self.caps[self.todo]).max(initial=0))


def make_work(
    prompts: Sequence[Sequence[int]],
    samples: int,
    rollout: RolloutConfig,
    *,
    max_new_tokens: int,
    stop_tokens: Sequence[int],
    seed: int,
    sample_ids: Ints | None,
    forced: Sequence[Sequence[int]] | None,
    only: Ints | None,
    adapters: bool | Sequence[bool],
    context: int,
    vocabulary: int,
) -> Work:
    """The work of a call of `PagedEngine.generate`; see there.

    Args:
        context, vocabulary: of the model.

    Raises:
        UserError, ValueError: as `generate`, but for what the cache cannot hold.
    """
    if not prompts or any(not len(p) for p in prompts):
        raise UserError("a rollout needs at least one prompt, and prompts at least one token")
    count = len(prompts) * samples
    if forced is not None and (len(forced) != count or not all(len(f) for f in forced)):
        raise ValueError(f"forced needs one answer, not empty, for each of {count} samples")
    adapted = [adapters] * len(prompts) if isinstance(adapters, bool) else list(adapters)
    if len(adapted) != len(prompts):
        raise ValueError(f"adapters has {len(adapted)} answers for {len(prompts)} prompts")
    caps = np.full(count, max_new_tokens, np.int64)
    if forced is not None:
        caps = np.array([len(f) for f in forced], np.int64)
    most = max(len(p) for p in prompts) + int(caps.max())
    if most > context:
        raise UserError(
            f"prompt and answer take {most} tokens, but the model's context is {context}",
            "task.max_new_tokens",
        )
    stops = np.zeros(vocabulary, bool)
    stops[[t for t in stop_tokens if 0 <= t < vocabulary]] = True
    everything = np.arange(count, dtype=np.int64)
    return Work(
        prompts=[tuple(int(t) for t in p) for p in prompts],
        samples=samples,
        todo=everything if only is None else only,
        keys=everything if sample_ids is None else sample_ids,
        caps=caps,
        stops=stops,
        forced=forced,
        rollout=rollout,
        seed=seed,
        adapted=adapted,
    )
