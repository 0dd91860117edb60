"""Who holds which pages: prompts and samples, in the pool, in host memory, or not yet begun.

Every change of a holding is one call here, so that the pool's counts, the tensors and the books
agree: read or bring a prompt, begin a sample on it, move either to host memory and back, end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from sparrow_lab.rollout.paged.pool import PagePool
from sparrow_lab.rollout.paged.scheduler import SharedPrompt, Started
from sparrow_lab.rollout.paged.store import HostPages, PageStore


@dataclass
class Prompt:
    """A prompt with samples that wait or go on.

    Attributes:
        full: pages that its samples share, while it is resident.
        rest: its partly filled last page, kept while samples wait to copy it.
        users: samples that have started and not ended; holders: those of them that are running.
        hidden: final hidden state of its last token; None until it has been read.
        saved: its pages in host memory, `rest` last.
    """

    length: int
    waiting: int
    full: list[int] = field(default_factory=list)
    rest: int | None = None
    users: int = 0
    holders: int = 0
    resident: bool = False
    hidden: Tensor | None = None
    saved: HostPages | None = None

    def pages(self) -> list[int]:
        """All pages that it holds itself."""
        return [*self.full, *([] if self.rest is None else [self.rest])]


@dataclass
class Sample:
    """A sample that has started.

    Attributes:
        token: drawn and not yet fed.
        length: tokens in the cache.
        own: its pages behind the prompt's full ones, while it is running.
        saved: those pages in host memory, while it is not.
    """

    prompt: int
    length: int
    token: int
    own: list[int] = field(default_factory=list)
    saved: HostPages | None = None


class Table:
    """Prompts and samples of one rollout, and their pages."""

    def __init__(self, store: PageStore, lengths: dict[int, int], waiting: dict[int, int]) -> None:
        self.store, self.pool = store, PagePool(store.pages)
        self.size = store.layout.page_size
        self.prompts = {key: Prompt(lengths[key], n) for key, n in waiting.items()}
        self.samples: dict[int, Sample] = {}
        self.moved_pages = 0
        """Pages that have gone to host memory so far."""

    # ------------------------------------------------------------------ what a decision sees
    def shared_prompt(self, key: int) -> SharedPrompt:
        """A prompt in the scheduler's words."""
        p = self.prompts[key]
        return SharedPrompt(p.length, p.waiting, p.holders, p.resident)

    def started(self, number: int) -> Started:
        """A sample in the scheduler's words."""
        s = self.samples[number]
        own = len(s.own) if s.saved is None else len(s.saved)
        shared = self.prompts[s.prompt].length // self.size
        ahead = (shared + own) * self.size > s.length and s.length % self.size == 0
        return Started(number, s.prompt, s.length, own, ahead)

    # ------------------------------------------------------------------ prompts
    def place_prompt(self, key: int, kv_L2KTD: Tensor, hidden_M: Tensor) -> None:
        """Take in a prompt that has just been read."""
        prompt = self.prompts[key]
        self._lay(prompt)
        prompt.hidden = hidden_M
        self.store.write_prompt(prompt.pages(), kv_L2KTD)

    def bring(self, key: int) -> None:
        """Bring a prompt back from host memory if it is there."""
        prompt = self.prompts[key]
        if prompt.resident or prompt.saved is None:
            return
        self._lay(prompt)
        self.store.restore(prompt.pages(), prompt.saved)
        prompt.saved = None

    def _lay(self, prompt: Prompt) -> None:
        count, rest = divmod(prompt.length, self.size)
        prompt.full = self.pool.take(count)
        prompt.rest = self.pool.take(1)[0] if rest and prompt.waiting else None
        prompt.resident = True

    def evict(self, key: int) -> None:
        """Move a prompt that no running sample reads to host memory."""
        prompt = self.prompts[key]
        prompt.saved = self.store.save(prompt.pages())
        self._let_go(prompt)

    def _let_go(self, prompt: Prompt) -> None:
        self.moved_pages += 0 if prompt.saved is None else len(prompt.saved)
        self.pool.release(prompt.pages())
        prompt.full, prompt.rest, prompt.resident = [], None, False

    # ------------------------------------------------------------------ samples
    def begin(self, number: int, key: int) -> None:
        """Let a sample go on from its prompt, which is resident."""
        prompt = self.prompts[key]
        prompt.waiting -= 1
        prompt.users += 1
        sample = Sample(key, prompt.length, -1)
        self.samples[number] = sample
        self._hold(prompt)
        if prompt.rest is None:
            return
        if prompt.waiting:
            sample.own = self.pool.take(1)
            self.store.copy_page(prompt.rest, sample.own[0])
        else:  # nobody else needs it
            sample.own, prompt.rest = [prompt.rest], None

    def grow(self, number: int) -> int:
        """A page for the next token of a sample; returns its number."""
        (page,) = self.pool.take(1)
        self.samples[number].own.append(page)
        return page

    def pages(self, number: int) -> list[int]:
        """All pages of a running sample, in the order of its tokens."""
        sample = self.samples[number]
        return [*self.prompts[sample.prompt].full, *sample.own]

    def preempt(self, number: int) -> None:
        """Move a running sample's own pages to host memory."""
        sample = self.samples[number]
        sample.saved = self.store.save(sample.own)
        self.moved_pages += len(sample.own)
        self._drop(sample)

    def resume(self, number: int) -> None:
        """Bring a sample back; its prompt first, if that has gone too."""
        sample = self.samples[number]
        assert sample.saved is not None
        self.bring(sample.prompt)
        sample.own = self.pool.take(len(sample.saved))
        self.store.restore(sample.own, sample.saved)
        sample.saved = None
        self._hold(self.prompts[sample.prompt])

    def end(self, number: int) -> None:
        """Give back what a running sample holds, and its prompt if nobody needs that any more."""
        sample = self.samples.pop(number)
        self._drop(sample)
        prompt = self.prompts[sample.prompt]
        prompt.users -= 1
        if not prompt.users and not prompt.waiting:
            prompt.saved = None
            self._let_go(prompt)
            del self.prompts[sample.prompt]

    def _hold(self, prompt: Prompt) -> None:
        self.pool.share(prompt.full)
        prompt.holders += 1

    def _drop(self, sample: Sample) -> None:
        prompt = self.prompts[sample.prompt]
        self.pool.release(sample.own)
        self.pool.release(prompt.full)
        sample.own = []
        prompt.holders -= 1
