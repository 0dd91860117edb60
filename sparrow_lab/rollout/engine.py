"""The rollout engine: continuous batching over a paged cache, sparse or dense, in plain torch.

Prompts are prefilled densely; generated tokens never are, since that would be another policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.run import Run
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ints = npt.NDArray[np.int64]


class RolloutEngine:
    """Generates samples for prompts with one model and one schedule.

    Args:
        model: any supported decoder of transformers, see `models.families`.
        schedule: how many tokens to attend to at each length; `Schedule.dense` for all.
        max_batch: sequences decoded at once; the pool is sized for as many of the longest.
    """

    def __init__(self, model: PreTrainedModel, schedule: Schedule, max_batch: int = 256) -> None:
        self.decoder = Decoder(model)
        if self.decoder.adapted:
            raise UserError("adapters are for the paged engine; this one has none", "adapter")
        self.max_batch = max_batch
        self.pages_held = 0
        """Cache pages that the last rollout did not give back; anything but 0 is a leak."""
        self.set_schedule(schedule)

    def set_schedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next rollout on.

        Raises:
            UserError: it is sparse, but keeps every layer of the model dense.
        """
        schedule.check_layers(self.decoder.layers)
        self.schedule = schedule

    def refresh(self) -> None:
        """Take over the model's weights after an update."""
        self.decoder.refresh()

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        samples: int,
        rollout: RolloutConfig,
        *,
        max_new_tokens: int,
        stop_tokens: Sequence[int] = (),
        seed: int = 0,
        sample_ids: Ints | None = None,
        forced: Sequence[Sequence[int]] | None = None,
        keep_hidden: bool = True,
        progress: Callable[[int, int], None] | None = None,
    ) -> RolloutBatch:
        """Generate `samples` answers for each prompt.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: cap on generated tokens of a sample.
            stop_tokens: ids that end a sample; they belong to it. Empty runs to the cap.
            seed, sample_ids: key of the noise; `sample_ids` [N] default to 0 .. N - 1.
            forced: one given answer a sample: its tokens are fed instead of sampled ones, and
                the log-probabilities are those of the given tokens.
            keep_hidden: keep the final hidden state of every token, for acceptance.
            progress: called with (samples finished, samples).

        Raises:
            UserError: a prompt is empty, or prompt and answer pass the model's context.
            ValueError: `forced` does not hold one answer a sample, or an empty one.
        """
        began = time.perf_counter()
        count = len(prompts) * samples
        ids = np.arange(count, dtype=np.int64) if sample_ids is None else sample_ids
        longest = max((len(f) for f in forced), default=0) if forced else max_new_tokens
        self._check(prompts, longest)
        if forced is not None and (len(forced) != count or not all(len(f) for f in forced)):
            raise ValueError(f"forced needs one answer, not empty, for each of {count} samples")
        run = Run(
            self.decoder,
            self.schedule,
            self.max_batch,
            prompts,
            samples,
            rollout,
            longest,
            stop_tokens,
            seed,
            ids,
            forced,
            keep_hidden,
        )
        told = 0
        with torch.inference_mode():
            while run.queue or run.active:
                if run.room():
                    run.admit()
                else:
                    run.step()
                if progress and run.ended > told:
                    told = run.ended
                    progress(told, count)
            batch = run.result()
        self.pages_held = run.pages_held
        batch.seconds = time.perf_counter() - began
        return batch

    def _check(self, prompts: Sequence[Sequence[int]], longest: int) -> None:
        if not prompts or any(not len(p) for p in prompts):
            raise UserError("a rollout needs at least one prompt, and prompts at least one token")
        context = int(self.decoder.model.config.max_position_embeddings)
        most = max(len(p) for p in prompts) + longest
        if most > context:
            raise UserError(
                f"prompt and answer take {most} tokens, but the model's context is {context}",
                "task.max_new_tokens",
            )
