"""One rollout of the paged engine: ask the scheduler, move pages, step, note, retire.

Shape suffixes: A sequences in use, M model width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.prefill import prefill
from sparrow_lab.rollout.paged.sampling import draw
from sparrow_lab.rollout.paged.scheduler import State, next_moves
from sparrow_lab.rollout.paged.slots import Slots
from sparrow_lab.rollout.paged.store import PageStore
from sparrow_lab.rollout.paged.table import Table
from sparrow_lab.rollout.paged.work import Work
from sparrow_lab.rollout.record import Recorder
from sparrow_lab.rollout.sampling import Sampled

Ints = npt.NDArray[np.int64]
Step = Callable[[int, int, bool], None]
"""Runs a decoding step for so many slots, columns of the table, and truncated sampling or not."""


class PagedRun:
    """State of one call of `PagedEngine.generate`."""

    def __init__(
        self,
        decoder: Decoder,
        store: PageStore,
        slots: Slots,
        step: Step,
        work: Work,
        recorder: Recorder,
        chunk: int,
        ended: Callable[[list[int]], None],
    ) -> None:
        self.decoder, self.slots, self.step_once, self.work = decoder, slots, step, work
        self.recorder, self.chunk, self.tell_ended = recorder, chunk, ended
        self.queue = deque(int(s) for s in work.todo)
        waiting: dict[int, int] = {}
        for s in self.queue:
            waiting[s // work.samples] = waiting.get(s // work.samples, 0) + 1
        lengths = {key: len(work.prompts[key]) for key in waiting}
        self.table = Table(store, lengths, waiting)
        self.running: list[int] = []
        """The oldest first."""
        self.at: list[int] = []
        """Sample in each slot."""
        self.preempted: list[int] = []
        self.preemptions = 0
        self._look = True
        r = work.rollout
        self.truncates = r.temperature > 0 and (r.top_k > 0 or r.top_p < 1 or r.min_p > 0)
        count = len(work.keys)
        self.generated_N = np.zeros(count, np.int64)
        self.finished_N = np.zeros(count, bool)

    @property
    def goes_on(self) -> bool:
        """Whether any sample is left."""
        return bool(self.queue or self.running or self.preempted)

    def close(self) -> None:
        """Let go of the engine, which would otherwise wait for Python to find the cycle."""
        del self.step_once, self.tell_ended

    def turn(self) -> None:
        """Make the scheduler's moves, then let every running sequence have a token."""
        self._make_moves()
        if self.running:
            self._step()
        elif self.goes_on and not self._look:
            raise RuntimeError("no sequence fits the cache; each was checked to fit alone")

    # ------------------------------------------------------------------ moves
    def _make_moves(self) -> None:
        size = self.table.size
        grows = len(self._growing())
        some_wait = bool(self.queue or self.preempted)
        if grows <= self.table.pool.free and not (self._look and some_wait):
            return
        self._look = False
        self._note_lengths()
        free_slots = self.slots.slots - len(self.at)
        waiting = [
            (s, s // self.work.samples) for s, _ in zip(self.queue, range(free_slots), strict=False)
        ]
        opened = {key for key, p in self.table.prompts.items() if p.resident or p.users}
        state = State(
            size,
            self.table.pool.free,
            free_slots,
            [self.table.started(s) for s in self.running],
            [self.table.started(s) for s in self.preempted],
            waiting,
            {key: self.table.shared_prompt(key) for key in opened | {key for _, key in waiting}},
        )
        moves = next_moves(state)
        for number in moves.preempt:
            self._leave(number)
            self.table.preempt(number)
            self.preempted.insert(0, number)
        self.preemptions += len(moves.preempt)
        for key in moves.evict:
            self.table.evict(key)
        for number in moves.resume:
            self.preempted.remove(number)
            self.table.resume(number)
            self._enter(number)
        if moves.start:
            self._start(moves.start)
        self._look |= bool(moves.preempt)

    def _note_lengths(self) -> None:
        """Bring the books up to date with the slots."""
        host = self.slots.host
        for slot, number in enumerate(self.at):
            sample = self.table.samples[number]
            sample.length = int(host["length"][slot])
            sample.token = int(host["token"][slot])

    def _enter(self, number: int) -> None:
        """Give a sample the next slot."""
        slot, sample = len(self.at), self.table.samples[number]
        self.at.append(number)
        self.running.append(number)
        self.slots.set(
            slot,
            self.work.rollout,
            token=sample.token,
            length=sample.length,
            sample=int(self.work.keys[number]),
            seed=self.work.seed,
            adapted=self.work.adapted[sample.prompt],
            prompt=len(self.work.prompts[sample.prompt]),
        )
        self.slots.set_pages(slot, 0, self.table.pages(number))

    def _leave(self, number: int) -> None:
        """Take a sample's slot; the last one moves into it."""
        self.running.remove(number)
        slot, last = self.at.index(number), len(self.at) - 1
        moved = self.at.pop()
        if slot != last:
            self.at[slot] = moved
            self.slots.move(last, slot)
        self.slots.clear(last)

    def _start(self, numbers: list[int]) -> None:
        """Read the prompts of waiting samples where need be, and draw each one's first token."""
        keys = [number // self.work.samples for number in numbers]
        fresh = []
        for key in dict.fromkeys(keys):
            self.table.bring(key)
            if not self.table.prompts[key].resident:
                fresh.append(key)
        prompts = [self.work.prompts[key] for key in fresh]
        adapted = [self.work.adapted[key] for key in fresh]
        for read in prefill(self.decoder, prompts, self.chunk, adapted):
            self.table.place_prompt(fresh[read.place], read.kv_L2KTD, read.hidden_M)
        first = len(self.at)
        hidden = []
        for number, key in zip(numbers, keys, strict=True):
            assert self.queue.popleft() == number
            self.table.begin(number, key)
            last = self.table.prompts[key].hidden
            assert last is not None
            hidden.append(last)
            self._enter(number)
        self._force(first)
        self.slots.push(len(self.at))
        hidden_AM = torch.stack(hidden)
        at = slice(first, len(self.at))
        drawn = draw(self.decoder.scores(hidden_AM), self.slots, at, self.truncates)
        tokens = drawn.tokens.cpu().numpy()
        for slot, token in enumerate(tokens.tolist(), first):
            self.slots.set_token(slot, token)
        self.recorder.add(np.array(numbers), np.zeros(len(numbers), np.int64), 0, drawn, hidden_AM)
        self._retire(first)

    # ------------------------------------------------------------------ steps
    def _step(self) -> None:
        slots, count = self.slots, len(self.at)
        self._give_pages(self._growing())
        slots.grow(count)
        self._force(0)
        slots.push(count)
        columns = -(-int(slots.host["length"][:count].max()) // self.table.size)
        self.step_once(count, columns, self.truncates)
        # the next step writes over what the slots hold: keep copies
        drawn = Sampled(
            slots["token"][:count].clone(),
            slots.logp[:count].clone(),
            slots.raw_logp[:count].clone(),
        )
        sample_A = np.array(self.at, np.int64)
        hidden = slots.hidden[:count].clone()
        self.recorder.add(sample_A, self._generated(0) - 1, 0, drawn, hidden)
        self._look_ahead(sample_A)
        slots.pull(count)
        self._retire(0)

    def _growing(self) -> Ints:
        """Slots whose next token needs another page."""
        count, host = len(self.at), self.slots.host
        return np.flatnonzero(host["pages"][:count] * self.table.size <= host["length"][:count])

    def _give_pages(self, growing: Ints) -> None:
        for slot in growing.tolist():
            page = self.table.grow(self.at[slot])
            self.slots.set_pages(slot, int(self.slots.host["pages"][slot]), [page])

    def _look_ahead(self, sample_A: Ints) -> None:
        """While a step runs: pages for the next one, if there are enough without moving anybody."""
        growing = self._growing()
        growing = growing[(self._generated(0) < self.work.caps[sample_A])[growing]]
        if len(growing) <= self.table.pool.free:
            self._give_pages(growing)

    def _generated(self, first: int) -> Ints:
        """Tokens drawn so far for the samples from slot `first` on."""
        part, host = slice(first, len(self.at)), self.slots.host
        generated: Ints = host["length"][part] - host["prompt"][part] + 1
        return generated

    def _force(self, first: int) -> None:
        """The given tokens that come next, of the samples from slot `first` on."""
        if self.work.forced is None:
            return
        drawn = self._generated(first) - 1
        given = [self.work.forced[s][n] for s, n in zip(self.at[first:], drawn, strict=True)]
        self.slots.force(first, np.array(given, np.int64))

    def _retire(self, first: int) -> None:
        """End the samples from slot `first` on that stopped or reached their cap."""
        numbers = np.array(self.at[first:], np.int64)
        generated = self._generated(first)
        over = generated >= self.work.caps[numbers]
        tokens = self.slots.host["token"][first : len(self.at)]
        stopped = self.work.stops[tokens]
        if self.work.forced is not None:
            stopped &= over  # a given answer ends where it ends, whatever it holds
        ended = over | stopped
        if not ended.any():
            return
        self.finished_N[numbers[stopped]] = True
        self.generated_N[numbers[ended]] = generated[ended]
        for number in numbers[ended].tolist():
            self._leave(number)
            self.table.end(number)
        self._look = True
        self.tell_ended(numbers[ended].tolist())
