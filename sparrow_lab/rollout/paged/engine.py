"""The paged engine: what `RolloutEngine` offers, over pages that are shared, moved and refilled.

It takes the place of the plain engine where that one's contiguous rows do not do: on a GPU, and
when more is asked for than fits the memory at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.results import close_samples, make_batch
from sparrow_lab.rollout.paged.run import PagedRun
from sparrow_lab.rollout.paged.runner import StepRunner
from sparrow_lab.rollout.paged.work import make_work
from sparrow_lab.rollout.record import Recorder
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ints = npt.NDArray[np.int64]

OnEnd = Callable[[list[int], RolloutBatch], None]


class PagedEngine:
    """Generates samples for prompts with one model and one schedule.

    Args:
        model: any supported decoder of transformers, see `models.families`.
        schedule: how many tokens to attend to at each length; `Schedule.dense` for all.
        max_batch: sequences decoded at once.
        memory: of the KV cache, at most: bytes (int), or the fraction of a GPU that the process may
            fill (float). No more is taken than `max_batch` of the longest need. None is 0.85 on a
            GPU, and as much as a rollout needs on a CPU.
        chunk: tokens of prompts that are read at once.
        graphs: capture steps as CUDA graphs. None: on a GPU, but for float64, whose operations are
            the plain definitions.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        schedule: Schedule,
        max_batch: int = 256,
        *,
        memory: int | float | None = None,
        chunk: int = 8192,
        graphs: bool | None = None,
    ) -> None:
        on_gpu = next(model.parameters()).is_cuda
        self.decoder: Decoder = DeviceDecoder(model) if on_gpu else Decoder(model)
        self.max_batch, self.chunk = max_batch, chunk
        if graphs is None:
            graphs = on_gpu and self.decoder.dtype != torch.float64
        if memory is None and on_gpu:
            memory = 0.85
        self.runner = StepRunner(self.decoder, max_batch, memory, graphs)
        self.pages_held = 0
        """Cache pages that the last rollout did not give back; anything but 0 is a leak."""
        self.preemptions = 0
        """Sequences that the last rollout moved to host memory."""
        self.set_schedule(schedule)

    def set_schedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next rollout on.

        Raises:
            UserError: it is sparse, but keeps every layer of the model dense.
        """
        schedule.check_layers(self.decoder.layers)
        self.runner.follow(schedule)
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
        only: Ints | None = None,
        on_end: OnEnd | None = None,
        adapters: bool | Sequence[bool] = True,
    ) -> RolloutBatch:
        """Generate `samples` answers for each prompt; see `RolloutEngine.generate`.

        Args:
            only: numbers of the samples to generate, rising; the others stay empty in the batch.
                None: all.
            adapters: whether a model that has LoRA adapters uses them; one for all, or one for
                each prompt.
            on_end: called with the samples that have just ended; the batch holds them then.

        Returns:
            The batch; its hidden states lie in host memory, all else where the model is.

        Raises:
            UserError: a prompt is empty, prompt and answer pass the model's context, or would not
                fit the cache even alone.
            ValueError: `forced` does not hold one answer a sample, or an empty one; or `adapters`
                does not hold one for each prompt.
        """
        began = time.perf_counter()
        work = make_work(
            prompts,
            samples,
            rollout,
            max_new_tokens=max_new_tokens,
            stop_tokens=stop_tokens,
            seed=seed,
            sample_ids=sample_ids,
            forced=forced,
            only=only,
            adapters=adapters,
            context=self.runner.context,
            vocabulary=int(self.decoder.head.shape[0]),
        )
        todo, total = work.todo, len(work.todo)
        store, slots = self.runner.place(work, self.schedule)
        batch = make_batch(self.decoder, work, keep_hidden)
        recorder = Recorder(batch)
        done = 0

        def ended(numbers: list[int]) -> None:
            nonlocal done
            done += len(numbers)
            if on_end is not None:
                recorder.flush()
                close_samples(batch, run, self.schedule, numbers)
                on_end(numbers, batch)
            if progress is not None:
                progress(done, total)

        with torch.inference_mode():
            step = self.runner.step
            run = PagedRun(self.decoder, store, slots, step, work, recorder, self.chunk, ended)
            while run.goes_on:
                run.turn()
            recorder.flush()
            close_samples(batch, run, self.schedule, todo.tolist())
        run.close()
        self.pages_held, self.preemptions = run.table.pool.held, run.preemptions
        batch.seconds = time.perf_counter() - began
        return batch.to(self.decoder.device)

    def check(self, prompts: Sequence[Sequence[int]], samples: int, max_new_tokens: int) -> None:
        """Refuse now what `generate` would refuse, before anything is generated.

        Raises:
            UserError: as `generate`.
        """
        work = make_work(
            prompts,
            samples,
            RolloutConfig(),
            max_new_tokens=max_new_tokens,
            stop_tokens=(),
            seed=0,
            sample_ids=None,
            forced=None,
            only=None,
            adapters=True,
            context=self.runner.context,
            vocabulary=int(self.decoder.head.shape[0]),
        )
        if self.runner.memory is not None:  # else the cache is made as large as it must be
            self.runner.place(work, self.schedule)
