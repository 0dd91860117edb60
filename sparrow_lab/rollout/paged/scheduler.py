"""Who decodes next: pure decisions over counts of pages and slots.

`next_moves` looks at a snapshot and answers with moves; it holds nothing and touches no tensor. The
rules, first things first:

1. A running sequence whose next token begins a page gets that page. If too few are free, prompts
   that no running sequence needs go to host memory, then the youngest sequences, until it fits. The
   oldest sequence is never moved for another, so that something always goes on.
2. What was moved comes back before anything new starts, the oldest first.
3. New samples start in their order, as many as find a slot and pages.

Coming back and starting leave a page for every running sequence, or what just came would be the
next to go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sparrow_lab.rollout.paged.pool import pages_of


@dataclass(frozen=True)
class SharedPrompt:
    """A prompt that is in the cache, in host memory, or has yet to be read.

    Attributes:
        length: its tokens. Full pages are shared by all its samples; a partly filled last one is
            kept for samples that wait, each of which starts with a copy of it.
        waiting: samples that have not started.
        holders: running sequences that read its full pages.
        resident: whether its pages are in the pool.
    """

    length: int
    waiting: int
    holders: int = 0
    resident: bool = False

    def full(self, page_size: int) -> int:
        """Pages that its samples share."""
        return self.length // page_size

    def pages(self, page_size: int) -> int:
        """Pages that are its own while it is resident."""
        return self.full(page_size) + bool(self.waiting and self.length % page_size)


@dataclass(frozen=True)
class Started:
    """A sample that has started.

    Attributes:
        sample: its number.
        prompt: the key of its prompt.
        length: tokens in the cache, the prompt counted.
        own: pages that it does not share.
        ahead: whether they hold the page of its next token already.
    """

    sample: int
    prompt: int
    length: int
    own: int
    ahead: bool = False

    def grows(self, page_size: int) -> bool:
        """Whether its next token needs another page."""
        return not self.ahead and self.length % page_size == 0


@dataclass(frozen=True)
class State:
    """What a decision is made of.

    Attributes:
        running, preempted: the oldest first.
        waiting: (sample, prompt) in the order of starting.
    """

    page_size: int
    free_pages: int
    free_slots: int
    running: Sequence[Started]
    preempted: Sequence[Started]
    waiting: Sequence[tuple[int, int]]
    prompts: dict[int, SharedPrompt]


@dataclass
class Moves:
    """What to do before the next step, in this order.

    Attributes:
        preempt: samples to move to host memory, the youngest first.
        evict: prompts to move to host memory, by key.
        resume: samples to bring back; their prompts first, where those are not resident.
        start: waiting samples to start; their prompts are read or brought back first.
    """

    preempt: list[int] = field(default_factory=list)
    evict: list[int] = field(default_factory=list)
    resume: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)


def next_moves(state: State, most_starts: int | None = None) -> Moves:
    """Decide; see the module's docstring.

    Args:
        most_starts: start no more than so many samples now. None: as many as fit.
    """
    return _Decision(state).decide(most_starts)


class _Decision:
    """The counts as they will be once the moves so far are made."""

    def __init__(self, state: State) -> None:
        self.state, self.moves = state, Moves()
        self.size = state.page_size
        self.free, self.slots = state.free_pages, state.free_slots
        self.running = list(state.running)
        self.prompts = dict(state.prompts)

    def decide(self, most_starts: int | None) -> Moves:
        self._let_grow()
        self.free -= sum(s.grows(self.size) for s in self.running)
        if not self.moves.preempt:
            back = self._resume()
            if back:
                self._start(most_starts)
        return self.moves

    def _let_grow(self) -> None:
        """Rule 1."""
        while sum(s.grows(self.size) for s in self.running) > self.free:
            if self._evict_one(keep=None):
                continue
            self._preempt(self.running.pop())

    def _preempt(self, gone: Started) -> None:
        self.moves.preempt.append(gone.sample)
        self.free += gone.own
        self.slots += 1
        self._hold(gone.prompt, -1)

    def _resume(self) -> bool:
        """Rule 2; True when nothing is left in host memory."""
        for s in self.state.preempted:
            # its next token may need a page at once
            if not self._room(s.prompt, s.own + s.grows(self.size)):
                return False
            self.moves.resume.append(s.sample)
            self._take(s.prompt, s.own + s.grows(self.size))
            self.running.append(s)
        return True

    def _start(self, most: int | None) -> None:
        """Rule 3."""
        for sample, key in self.state.waiting:
            if most is not None and len(self.moves.start) >= most:
                return
            prompt = self.prompts[key]
            # a copy of the partly filled page, or a first page of its own; the last sample to
            # start takes over the prompt's partly filled page
            last = prompt.waiting == 1
            rest = bool(prompt.length % self.size)
            own = 0 if last and rest else 1
            if not self._room(key, own):
                return
            self.moves.start.append(sample)
            self._take(key, own)
            self.prompts[key] = replace(self.prompts[key], waiting=prompt.waiting - 1)
            self.running.append(Started(sample, key, prompt.length, 1))

    def _room(self, key: int, own: int) -> bool:
        """Whether a sequence may come in, moving idle prompts out of its way if need be."""
        if not self.slots:
            return False
        prompt = self.prompts[key]
        need = own + (0 if prompt.resident else prompt.pages(self.size)) + len(self.running)
        idle = sum(self.prompts[k].pages(self.size) for k in self._idle(keep=key))
        if need > self.free + idle:
            return False
        while need > self.free:
            self._evict_one(keep=key)
        return True

    def _take(self, key: int, own: int) -> None:
        prompt = self.prompts[key]
        if not prompt.resident:
            self.free -= prompt.pages(self.size)
            self.prompts[key] = replace(prompt, resident=True)
        self.free -= own
        self.slots -= 1
        self._hold(key, 1)

    def _hold(self, key: int, more: int) -> None:
        prompt = self.prompts[key]
        self.prompts[key] = replace(prompt, holders=prompt.holders + more)

    def _idle(self, keep: int | None) -> list[int]:
        """Resident prompts with pages of their own that no running sequence reads."""
        return [
            key
            for key, p in self.prompts.items()
            if p.resident and not p.holders and p.pages(self.size) and key != keep
        ]

    def _evict_one(self, keep: int | None) -> bool:
        """Move the last prompt that nobody reads to host memory, if there is one."""
        idle = self._idle(keep)
        if not idle:
            return False
        key = max(idle)
        self.moves.evict.append(key)
        self.free += self.prompts[key].pages(self.size)
        self.prompts[key] = replace(self.prompts[key], resident=False)
        return True


def own_pages(length: int, prompt_length: int, page_size: int) -> int:
    """Pages of a sequence that are not its prompt's full ones."""
    return pages_of(length, page_size) - prompt_length // page_size
