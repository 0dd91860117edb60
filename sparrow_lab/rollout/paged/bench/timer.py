"""The time of one decoding step at any length, over a cache that is really as large."""

from __future__ import annotations

import statistics
import time

import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.budgets import Budgets
from sparrow_lab.rollout.paged.graphs import StepGraphs, padded_columns
from sparrow_lab.rollout.paged.pool import pages_of
from sparrow_lab.rollout.paged.runner import layout_of, step_shape
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.step import StepShape, decode_step
from sparrow_lab.rollout.paged.store import PageStore
from sparrow_lab.sparsity.schedule import Schedule


class StepTimer:
    """A batch of sequences of one length, whose step can be timed again and again.

    Keys, values and landmarks are random, and pages lie in random order over the whole cache, as
    after a long rollout. A timed step writes the same place each time, so the length stays.

    Args:
        schedule: for its page size, landmarks and dense layers; a dense one may be timed too.
        longest: the greatest length that will be asked for.
    """

    def __init__(self, decoder: Decoder, schedule: Schedule, batch: int, longest: int) -> None:
        device = decoder.device
        self.decoder, self.batch = decoder, batch
        layout = layout_of(decoder, schedule)
        columns = pages_of(longest, layout.page_size)
        self.store = PageStore(layout, batch * columns, device)
        for layer in self.store.kv_L2NKSD:
            layer.normal_()
        if self.store.marks_LNKRD is not None:
            for marks in self.store.marks_LNKRD:
                marks.normal_(std=layout.page_size**-0.5)
        shape = (decoder.width, decoder.kv_heads, decoder.dtype, decoder.wide, device)
        self.slots = Slots(batch, columns, *shape)
        order = torch.randperm(self.store.pages, generator=torch.Generator().manual_seed(0))
        for slot in range(batch):
            self.slots.set(slot, RolloutConfig(), token=slot, length=1, sample=slot, seed=0)
            mine = order[slot * columns : (slot + 1) * columns].tolist()
            self.slots.set_pages(slot, 0, mine)
        self.budgets = Budgets(device)
        self.graphs = StepGraphs(self.slots) if device.type == "cuda" else None

    def ms(self, schedule: Schedule, length: int, repeats: int = 15) -> float:
        """Median milliseconds of a step that brings every sequence to this length."""
        self.budgets.load(schedule)
        for slot in range(self.batch):
            self.slots.set_length(slot, length)
        self.slots.push(self.batch)
        columns = padded_columns(pages_of(length, schedule.page_size), self.slots.columns)
        shape = step_shape(schedule, self.batch, columns, False)
        with torch.inference_mode():
            for _ in range(2):
                self._once(shape)
            return statistics.median(self._timed(shape) for _ in range(repeats))

    def _once(self, shape: StepShape) -> None:
        if self.graphs is None:
            self._run(shape)
        else:
            self.graphs.run(shape, self._run)

    def _timed(self, shape: StepShape) -> float:
        if self.graphs is None:
            began = time.perf_counter()
            self._run(shape)
            return (time.perf_counter() - began) * 1e3
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graphs.run(shape, self._run)
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def _run(self, shape: StepShape) -> None:
        decode_step(self.decoder, self.store, self.slots, self.budgets, shape)
