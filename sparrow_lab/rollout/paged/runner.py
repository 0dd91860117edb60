"""Where steps run: pages, slots and graphs of an engine, kept from rollout to rollout."""

from __future__ import annotations

from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.budgets import Budgets
from sparrow_lab.rollout.paged.graphs import (
    StepGraphs,
    choice_width,
    padded,
    padded_columns,
)
from sparrow_lab.rollout.paged.memory import pages_for
from sparrow_lab.rollout.paged.ops import Choice
from sparrow_lab.rollout.paged.pool import check_fits, pages_of
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.step import StepShape, decode_step
from sparrow_lab.rollout.paged.store import Layout, PageStore
from sparrow_lab.rollout.paged.work import Work
from sparrow_lab.sparsity.schedule import Schedule


def layout_of(decoder: Decoder, schedule: Schedule) -> Layout:
    """Pages that this schedule asks for."""
    return Layout(
        decoder.layers,
        decoder.kv_heads,
        decoder.head_dim,
        schedule.page_size,
        None if schedule.is_dense else schedule.landmark,
        schedule.dense_layers,
        decoder.dtype,
    )


def step_shape(schedule: Schedule, count: int, columns: int, truncates: bool) -> StepShape:
    """The shape of a step of so many slots and columns of the page table by a schedule."""
    choice = None if schedule.is_dense else Choice.of(schedule)
    return StepShape(count, columns, choice, choice_width(schedule, columns), truncates)


class StepRunner:
    """Runs steps of one model over its own cache.

    Args:
        memory: as `PagedEngine`.
        captures: whether steps are captured as CUDA graphs.
    """

    def __init__(
        self, decoder: Decoder, max_batch: int, memory: int | float | None, captures: bool
    ) -> None:
        self.decoder, self.max_batch, self.memory = decoder, max_batch, memory
        self.captures = captures
        self.context = int(decoder.model.config.max_position_embeddings)
        decoder.reserve_turns(self.context)
        self.budgets = Budgets(decoder.device)
        self.schedule: Schedule | None = None
        self._shapes: dict[tuple[int, int, bool], StepShape] = {}
        self.store: PageStore | None = None
        self.slots: Slots | None = None
        self.graphs: StepGraphs | None = None

    def follow(self, schedule: Schedule) -> None:
        """Choose pages by this schedule from the next step on."""
        self.budgets.load(schedule)
        self.schedule = schedule
        self._shapes = {}

    def place(self, work: Work, schedule: Schedule) -> tuple[PageStore, Slots]:
        """Pages and slots for this work: those of the last rollout where they do.

        Raises:
            UserError: no page has room, or a request would not fit even alone.
        """
        layout = layout_of(self.decoder, schedule)
        old = self.store
        if old is not None and schedule.is_dense and old.layout.page_size == layout.page_size:
            layout = old.layout  # landmarks that nobody asks for do no harm
        if self.memory is None:
            columns = pages_of(work.longest, layout.page_size)
            slots = min(len(work.todo), self.max_batch)
        else:
            columns, slots = pages_of(self.context, layout.page_size), self.max_batch
        store = self._store(layout, slots * (columns + 2))
        placed = self._slots(slots, columns)
        for s in work.todo.tolist():
            length, cap = len(work.prompts[s // work.samples]), int(work.caps[s])
            shared = work.samples > 1
            check_fits(length, cap, shared, layout.page_size, store.pages, layout.page_bytes)
        return store, placed

    def _store(self, layout: Layout, enough: int) -> PageStore:
        """The present pages if they are such; else new ones: `enough`, or what memory there is."""
        if self.store is not None and self.store.layout == layout and self.memory is not None:
            return self.store
        self.store = self.graphs = None  # two caches at once might not fit
        pages = enough
        if self.memory is not None:  # what no rollout could use is left to others on the device
            pages = min(pages, pages_for(self.memory, layout, self.decoder.device))
        self.store = PageStore(layout, pages, self.decoder.device)
        return self.store

    def _slots(self, slots: int, columns: int) -> Slots:
        if self.slots is None or (self.slots.slots, self.slots.columns) != (slots, columns):
            dec = self.decoder
            shape = (dec.width, dec.kv_heads, dec.dtype, dec.wide, dec.device)
            self.graphs, self.slots = None, Slots(slots, columns, *shape)
        self.slots.clear_all()
        return self.slots

    def step(self, count: int, columns: int, truncates: bool) -> None:
        """Run a step of so many slots and columns of the page table."""
        assert self.slots is not None
        if not self.captures:
            self.run(self._shape(count, columns, truncates))
            return
        if self.graphs is None:
            self.graphs = StepGraphs(self.slots)
        count = padded(count, self.slots.slots)
        columns = padded_columns(columns, self.slots.columns)
        self.graphs.run(self._shape(count, columns, truncates), self.run)

    def _shape(self, count: int, columns: int, truncates: bool) -> StepShape:
        """Worked out once for a schedule: a step has no time for it."""
        assert self.schedule is not None
        asked = (count, columns, truncates)
        if asked not in self._shapes:
            self._shapes[asked] = step_shape(self.schedule, *asked)
        return self._shapes[asked]

    def run(self, shape: StepShape) -> None:
        """Run a step of exactly this shape."""
        assert self.store is not None and self.slots is not None
        decode_step(self.decoder, self.store, self.slots, self.budgets, shape)
