"""The scheduler against any load: nothing is lost, nothing waits for ever, no page is given twice.

`Simulation` plays a rollout with counts in place of tensors: it makes the moves and lets every
running sequence grow by a token until it ends at a length of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_lab.errors import UserError
from sparrow_lab.rollout.paged.pool import check_fits
from sparrow_lab.rollout.paged.scheduler import (
    SharedPrompt,
    Started,
    State,
    next_moves,
    own_pages,
)


@dataclass
class Simulation:
    """Counts of a rollout: `free` pages fall and rise as the moves say."""

    size: int
    pages: int
    slots: int
    prompts: dict[int, SharedPrompt]
    caps: list[int]
    """New tokens of each sample."""
    samples: int
    looks_ahead: bool = False
    """Takes the pages of the next step while this one runs, if they are free."""
    free: int = 0
    running: list[Started] = field(default_factory=list)
    preempted: list[Started] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    preemptions: int = 0
    evictions: int = 0

    def __post_init__(self) -> None:
        self.free = self.pages
        self.waiting = [(s, s // self.samples) for s in range(len(self.caps))]

    def hold(self, key: int, more: int) -> None:
        prompt = self.prompts[key]
        assert prompt.holders + more >= 0
        self.prompts[key] = replace(prompt, holders=prompt.holders + more)

    def bring(self, key: int) -> None:
        """Read a prompt, or bring it back."""
        if not self.prompts[key].resident:
            self.free -= self.prompts[key].pages(self.size)
            self.prompts[key] = replace(self.prompts[key], resident=True)

    def make_moves(self) -> None:
        state = State(
            self.size,
            self.free,
            self.slots - len(self.running),
            tuple(self.running),
            tuple(self.preempted),
            tuple(self.waiting),
            dict(self.prompts),
        )
        moves = next_moves(state)
        for sample in moves.preempt:
            gone = self.running.pop()
            assert gone.sample == sample, "the youngest goes first"
            assert self.running, "the oldest never goes"
            self.free += gone.own
            self.hold(gone.prompt, -1)
            self.preempted.insert(0, gone)
            self.preemptions += 1
        for key in moves.evict:
            prompt = self.prompts[key]
            assert prompt.resident and not prompt.holders, "somebody reads it"
            self.free += prompt.pages(self.size)
            self.prompts[key] = replace(prompt, resident=False)
            self.evictions += 1
        for sample in moves.resume:
            back = self.preempted.pop(0)
            assert back.sample == sample, "the oldest comes back first"
            self.bring(back.prompt)
            self.free -= back.own
            self.hold(back.prompt, 1)
            self.running.append(back)
        if moves.start:
            assert not self.preempted, "nothing new starts before what was moved is back"
        for sample in moves.start:
            first, key = self.waiting.pop(0)
            assert first == sample, "samples start in their order"
            self.bring(key)
            prompt = self.prompts[key]
            rest = bool(prompt.length % self.size)
            # the last sample takes the prompt's own partly filled page
            self.free -= rest and prompt.waiting > 1
            self.prompts[key] = replace(prompt, waiting=prompt.waiting - 1)
            self.hold(key, 1)
            self.running.append(Started(sample, key, prompt.length, int(rest)))
        assert self.free >= 0
        assert len(self.running) <= self.slots

    def end(self, ended: Started) -> None:
        self.running.remove(ended)
        self.free += ended.own
        self.hold(ended.prompt, -1)
        self.done.append(ended.sample)
        key, left = ended.prompt, [*self.running, *self.preempted]
        prompt = self.prompts[key]
        if not prompt.waiting and all(s.prompt != key for s in left):
            self.free += prompt.pages(self.size) if prompt.resident else 0
            self.prompts[key] = replace(prompt, resident=False)

    def step(self) -> None:
        """Every running sequence is fed a token, after its page if it begins one."""
        for i, s in enumerate(self.running):
            more = s.grows(self.size)
            grown = replace(s, length=s.length + 1, own=s.own + more, ahead=False)
            self.free -= more
            assert grown.own == own_pages(grown.length, self.prompts[s.prompt].length, self.size)
            self.running[i] = grown
        assert self.free >= 0, "a running sequence found no page"
        growing = [i for i, s in enumerate(self.running) if s.grows(self.size)]
        if self.looks_ahead and len(growing) <= self.free:
            for i in growing:
                s = self.running[i]
                self.running[i] = replace(s, own=s.own + 1, ahead=True)
            self.free -= len(growing)

    def finish_those_at_their_cap(self) -> None:
        for s in list(self.running):
            generated = s.length - self.prompts[s.prompt].length + 1
            if generated >= self.caps[s.sample]:
                self.end(s)

    def run(self) -> None:
        rounds = 0
        while self.waiting or self.running or self.preempted:
            self.make_moves()
            self.finish_those_at_their_cap()
            assert self.running or not (self.waiting or self.preempted) or rounds < 10_000
            self.step()
            self.finish_those_at_their_cap()
            rounds += 1
            assert rounds <= sum(self.caps) + len(self.caps) + 1, "nothing goes on"
        assert self.free == self.pages, "a page leaked"
        assert sorted(self.done) == list(range(len(self.caps)))


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    """Loads of any shape, none of which is too large to fit alone."""
    size = draw(st.sampled_from([1, 2, 4, 8]))
    samples = draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    count = len(lengths) * samples
    caps = draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))
    pages = draw(st.integers(1, 60))

    def fits(pages: int) -> bool:
        try:
            for s, cap in enumerate(caps):
                check_fits(lengths[s // samples], cap, samples > 1, size, pages, 1)
        except UserError:
            return False
        return True

    while not fits(pages):
        pages += 1
    prompts = {i: SharedPrompt(n, samples) for i, n in enumerate(lengths)}
    slots, ahead = draw(st.integers(1, 8)), draw(st.booleans())
    return Simulation(size, pages, slots, prompts, caps, samples, ahead)


@settings(max_examples=300)
@given(simulations())
def test_any_load_ends_and_gives_back_every_page(simulation: Simulation) -> None:
    simulation.run()


def test_a_tight_pool_preempts_and_a_wide_one_does_not() -> None:
    def played(pages: int) -> Simulation:
        prompts = {i: SharedPrompt(10, 2) for i in range(4)}
        simulation = Simulation(4, pages, 8, prompts, [30] * 8, 2)
        simulation.run()
        return simulation

    assert played(12).preemptions > 0
    assert played(200).preemptions == 0


def test_a_slot_that_is_free_is_taken_at_once() -> None:
    """Two long samples and many short ones in three slots: the third never stands idle."""
    prompts = {i: SharedPrompt(5, 1) for i in range(9)}
    simulation = Simulation(4, 100, 3, prompts, [20, 20, *[2] * 7], 1)
    while simulation.waiting:
        simulation.make_moves()
        assert len(simulation.running) == 3
        simulation.step()
        simulation.finish_those_at_their_cap()
    simulation.run()


def test_the_youngest_goes_and_the_oldest_goes_on() -> None:
    prompts = {0: SharedPrompt(4, 0, holders=3, resident=True)}
    running = [Started(i, 0, 8, 1) for i in range(3)]
    moves = next_moves(State(4, 2, 0, running, [], [], prompts))
    assert moves.preempt == [2]
    assert moves.resume == moves.start == []


def test_an_idle_prompt_goes_before_a_sequence_does() -> None:
    prompts = {
        0: SharedPrompt(4, 0, holders=1, resident=True),
        1: SharedPrompt(7, 1, resident=True),
    }
    moves = next_moves(State(4, 0, 0, [Started(0, 0, 8, 1)], [], [(1, 1)], prompts))
    assert (moves.evict, moves.preempt) == ([1], [])


def test_at_most_so_many_start_at_once() -> None:
    prompts = {0: SharedPrompt(4, 5)}
    waiting = [(s, 0) for s in range(5)]
    assert next_moves(State(4, 50, 5, [], [], waiting, prompts), 2).start == [0, 1]
