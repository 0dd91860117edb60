"""Decoding steps captured as CUDA graphs: one launch a step, whatever the model has of layers.

A graph is captured when a step of its shape first comes up. Shapes are rounded up to a few batch
sizes and table widths; what is too much are empty slots, which cost next to nothing. Weights,
budgets, slots and pages live in tensors that stay where they are, so that none of their changes
needs a new capture. One thing of a schedule is part of the shape: whether it may ask for more
pages than a narrow choice has room for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.step import StepShape
from sparrow_lab.sparsity.schedule import Schedule

Step = Callable[[StepShape], None]

FEW_COLUMNS = 64
NARROW_TOKENS = 12_288
"""What a narrow choice of pages holds. The decode kernel cuts no shorter row into chunks for being
long (`whole` in its settings), so it starts no programs for them."""
WARM_UPS = 2


def padded(count: int, most: int) -> int:
    """The batch size that `count` sequences are decoded at: steps of about an eighth."""
    step = 1
    while count > 8 * step:
        step *= 2
    return min(-(-count // step) * step, max(most, count))


def padded_columns(columns: int, most: int) -> int:
    """The width of the page table: a power of two, so that few widths come up."""
    wide = FEW_COLUMNS
    while wide < columns:
        wide *= 2
    return min(wide, most)


def choice_width(schedule: Schedule, columns: int) -> int:
    """Pages that a choice has room for: one of two widths, so that schedules share their graphs."""
    narrow = NARROW_TOKENS // schedule.page_size
    most = max(schedule.pages_at(columns * schedule.page_size), sum(schedule.reserved_pages()))
    return min(narrow, columns) if most <= narrow else columns


class StepGraphs:
    """Graphs of one engine. They do not hold it, so that it goes when nobody needs it."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, shape: StepShape, step: Step) -> None:
        """Run a step; capture it first if it is the first of its shape.

        Args:
            step: runs a step of a shape, without waiting for the device.
        """
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(shape, step)
        self._graphs[shape].replay()

    def _capture(self, shape: StepShape, step: Step) -> torch.cuda.CUDAGraph:
        """Kernels are compiled, and libraries take their workspace, before the capture.

        A step writes the token that it draws over the one that it was fed. All else that it writes
        comes out the same when it is run again, so only the token is put back.
        """
        fed = self._slots["token"].clone()
        side = torch.cuda.Stream(self._slots.device)
        side.wait_stream(torch.cuda.current_stream(self._slots.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                step(shape)
                self._slots["token"].copy_(fed)
        torch.cuda.current_stream(self._slots.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # a graph of an engine that is gone must not be cleared away now: that ends the capture
        with _no_collection(), torch.cuda.graph(graph, pool=self._pool):
            step(shape)
        return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's search for cycles to clear away."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
