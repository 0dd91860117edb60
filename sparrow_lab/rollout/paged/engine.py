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
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.budgets import Budgets
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.graphs import StepGraphs, padded, padded_columns
from sparrow_lab.rollout.paged.memory import pages_for
from sparrow_lab.rollout.paged.ops import Choice
from sparrow_lab.rollout.paged.pool import check_fits, pages_of
from sparrow_lab.rollout.paged.run import PagedRun, Work
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.step import StepShape, decode_step
from sparrow_lab.rollout.paged.store import Layout, PageStore
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
        memory: of the KV cache: bytes (int), or the fraction of a GPU that the process may fill
            (float). None sizes it for as many of the longest as are decoded at once on a CPU, and
            is 0.85 on a GPU.
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
        self.memory = 0.85 if memory is None and on_gpu else memory
        double = self.decoder.dtype == torch.float64
        self.captures = (on_gpu and not double) if graphs is None else graphs
        self.context = int(model.config.max_position_embeddings)
        self.decoder.reserve_turns(self.context)
        self.budgets = Budgets(self.decoder.device)
        self.pages_held = 0
        """Cache pages that the last rollout did not give back; anything but 0 is a leak."""
        self.preemptions = 0
        """Sequences that the last rollout moved to host memory."""
        self._store: PageStore | None = None
        self._slots: Slots | None = None
        self._graphs: StepGraphs | None = None
        self.set_schedule(schedule)

    def set_schedule(self, schedule: Schedule) -> None:
        """Use another schedule from the next rollout on.

        Raises:
            UserError: it is sparse, but keeps every layer of the model dense.
        """
        if not schedule.is_dense and schedule.dense_layers >= self.decoder.layers:
            raise UserError(
                f"{schedule.dense_layers} dense layers leave none of the model's "
                f"{self.decoder.layers} layers sparse",
                "sparsity.dense_layers",
            )
        self.budgets.load(schedule)
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
        work = self._work(
            prompts,
            samples,
            rollout,
            max_new_tokens,
            stop_tokens,
            seed,
            sample_ids,
            forced,
            only,
            [adapters] * len(prompts) if isinstance(adapters, bool) else list(adapters),
        )
        todo, total = work.todo, len(work.todo)
        store, slots = self._place(work)
        batch = self._make_batch(work, keep_hidden)
        recorder = Recorder(batch)
        done = 0

        def ended(numbers: list[int]) -> None:
            nonlocal done
            done += len(numbers)
            if on_end is not None:
                recorder.flush()
                self._close(batch, run, numbers)
                on_end(numbers, batch)
            if progress is not None:
                progress(done, total)

        with torch.inference_mode():
            run = PagedRun(
                self.decoder, store, slots, self._step, work, recorder, self.chunk, ended
            )
            while run.goes_on:
                run.turn()
            recorder.flush()
            self._close(batch, run, todo.tolist())
        run.close()
        self.pages_held, self.preemptions = run.table.pool.held, run.preemptions
        batch.seconds = time.perf_counter() - began
        return batch.to(self.decoder.device)

    def _work(
        self,
        prompts: Sequence[Sequence[int]],
        samples: int,
        rollout: RolloutConfig,
        max_new_tokens: int,
        stop_tokens: Sequence[int],
        seed: int,
        sample_ids: Ints | None,
        forced: Sequence[Sequence[int]] | None,
        only: Ints | None,
        adapted: list[bool],
    ) -> Work:
        """Check what is asked for, but for its size."""
        if not prompts or any(not len(p) for p in prompts):
            raise UserError("a rollout needs at least one prompt, and prompts at least one token")
        count = len(prompts) * samples
        if forced is not None and (len(forced) != count or not all(len(f) for f in forced)):
            raise ValueError(f"forced needs one answer, not empty, for each of {count} samples")
        if len(adapted) != len(prompts):
            raise ValueError(f"adapters has {len(adapted)} answers for {len(prompts)} prompts")
        caps = np.full(count, max_new_tokens, np.int64)
        if forced is not None:
            caps = np.array([len(f) for f in forced], np.int64)
        most = max(len(p) for p in prompts) + int(caps.max())
        if most > self.context:
            raise UserError(
                f"prompt and answer take {most} tokens, but the model's context is {self.context}",
                "task.max_new_tokens",
            )
        stops = np.zeros(int(self.decoder.head.shape[0]), bool)
        stops[[t for t in stop_tokens if 0 <= t < len(stops)]] = True
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

    # ------------------------------------------------------------------ memory
    def _place(self, work: Work) -> tuple[PageStore, Slots]:
        """Pages and slots for this work: those of the last rollout where they do."""
        dec, schedule = self.decoder, self.schedule
        layout = Layout(
            dec.layers,
            dec.kv_heads,
            dec.head_dim,
            schedule.page_size,
            None if schedule.is_dense else schedule.landmark,
            schedule.dense_layers,
            dec.dtype,
        )
        old = self._store
        if old is not None and schedule.is_dense and old.layout.page_size == layout.page_size:
            layout = old.layout  # landmarks that nobody asks for do no harm
        size, longest = layout.page_size, 0
        for s in work.todo.tolist():
            longest = max(longest, len(work.prompts[s // work.samples]) + int(work.caps[s]))
        columns = pages_of(longest, size)
        slots = min(len(work.todo), self.max_batch)
        if self.memory is not None:
            columns, slots = pages_of(self.context, size), self.max_batch
        if old is None or old.layout != layout or self.memory is None:
            # two pools at once might not fit
            self._store = self._graphs = old = None
            pages = slots * (columns + 2)
            if self.memory is not None:
                pages = pages_for(self.memory, layout, dec.device)
            self._store = PageStore(layout, pages, dec.device)
        store = self._store
        assert store is not None
        if self._slots is None or (self._slots.slots, self._slots.columns) != (slots, columns):
            self._graphs = None
            self._slots = Slots(
                slots, columns, dec.width, dec.kv_heads, dec.dtype, dec.wide, dec.device
            )
        for s in work.todo.tolist():
            length, cap = len(work.prompts[s // work.samples]), int(work.caps[s])
            check_fits(length, cap, work.samples > 1, size, store.pages, store.layout.page_bytes)
        return store, self._slots

    def _make_batch(self, work: Work, keep_hidden: bool) -> RolloutBatch:
        dec, count = self.decoder, len(work.keys)
        shape = (count, int(work.caps.max()))
        pinned = dec.device.type == "cuda"
        hidden = None
        if keep_hidden:
            hidden = torch.zeros((*shape, dec.width), dtype=dec.dtype, pin_memory=pinned)
        return RolloutBatch(
            prompts=work.prompts,
            prompt_N=torch.arange(count) // work.samples,
            tokens_NT=torch.zeros(shape, dtype=torch.long),
            generated_N=torch.zeros(count, dtype=torch.long),
            finished_N=torch.zeros(count, dtype=torch.bool),
            logp_NT=torch.zeros(shape, dtype=dec.wide),
            raw_logp_NT=torch.zeros(shape, dtype=dec.wide),
            hidden_NTM=hidden,
            attended_NT=torch.zeros(shape, dtype=torch.long),
        )

    def _close(self, batch: RolloutBatch, run: PagedRun, numbers: list[int]) -> None:
        """Write what is known of ended samples beside their tokens."""
        for s in numbers:
            n = int(run.generated_N[s])
            batch.generated_N[s] = n
            batch.finished_N[s] = bool(run.finished_N[s])
            start = len(batch.prompts[int(batch.prompt_N[s])])
            attended = self.schedule.attended_for(np.arange(start, start + n))
            batch.attended_NT[s, :n] = torch.from_numpy(attended)
            batch.attended_NT[s, :1] = 0  # the first token comes from the dense prefill

    # ------------------------------------------------------------------ steps
    def _step(self, count: int, columns: int, truncates: bool) -> None:
        assert self._slots is not None
        choice = None if self.schedule.is_dense else Choice.of(self.schedule)
        if not self.captures:
            self._run(StepShape(count, columns, choice, truncates))
            return
        if self._graphs is None:
            self._graphs = StepGraphs(self._slots)
        count = padded(count, self._slots.slots)
        columns = padded_columns(columns, self._slots.columns)
        self._graphs.run(StepShape(count, columns, choice, truncates), self._run)

    def _run(self, shape: StepShape) -> None:
        assert self._store is not None and self._slots is not None
        decode_step(self.decoder, self._store, self._slots, self.budgets, shape)
