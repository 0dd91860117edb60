"""One rollout from its queue of samples to its batch: admit, step, retire.

Shape suffixes: N samples, A rows in use, M model width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.cache import RowCache
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.noise import RowNoise
from sparrow_lab.rollout.record import Recorder
from sparrow_lab.rollout.rows import Layout, OpenPrompt, Rows, lay_out
from sparrow_lab.rollout.sampling import Sampled, sample
from sparrow_lab.rollout.step import decode_step
from sparrow_lab.sparsity.schedule import Schedule

Ints = npt.NDArray[np.int64]


class Run:
    """One call of `RolloutEngine.generate`; see there for the arguments."""

    def __init__(
        self,
        decoder: Decoder,
        schedule: Schedule,
        max_batch: int,
        prompts: Sequence[Sequence[int]],
        samples: int,
        rollout: RolloutConfig,
        longest: int,
        stop_tokens: Sequence[int],
        seed: int,
        sample_ids: Ints,
        forced: Sequence[Sequence[int]] | None,
        keep_hidden: bool,
    ) -> None:
        self.decoder, self.schedule = decoder, schedule
        self.prompts = [tuple(int(t) for t in p) for p in prompts]
        self.samples, self.rollout = samples, rollout
        self.count = len(prompts) * samples
        self.noise = RowNoise(seed, sample_ids, decoder.device)
        self.queue = deque(range(self.count))
        self.max_rows = min(self.count, max_batch)
        self.stops = np.zeros(int(decoder.head.shape[0]), bool)
        self.stops[[t for t in stop_tokens if 0 <= t < len(self.stops)]] = True
        self.any_stop = bool(self.stops.any())
        self.cap_N = np.full(self.count, longest, np.int64)
        self.forced_NT: Ints | None = None
        if forced is not None:
            self.cap_N = np.array([len(f) for f in forced], np.int64)
            self.forced_NT = np.zeros((self.count, longest), np.int64)
            for s, answer in enumerate(forced):
                self.forced_NT[s, : len(answer)] = answer
        self.rows = Rows()
        self.until_cap = 0
        self.open: list[OpenPrompt] = []
        self.layout: Layout | None = None
        most = max(len(p) for p in self.prompts)
        lengths = np.arange(most + longest + 1)
        self.kept_pages = schedule.pages_for(lengths)
        self.attended = schedule.attended_for(lengths)
        self.cache = self._make_cache(most, longest)
        self.batch = self._make_batch(longest, keep_hidden)
        self.recorder = Recorder(self.batch)
        self.generated_N = np.zeros(self.count, np.int64)
        self.finished_N = np.zeros(self.count, bool)

    def _make_cache(self, most: int, longest: int) -> RowCache:
        dec, size = self.decoder, self.schedule.page_size
        columns = -(-(most + longest) // size)
        prompt_pages = -(-most // size) if self.samples > 1 else 0
        chooses = not self.schedule.is_dense and self.schedule.dense_layers < dec.layers
        return RowCache(
            (dec.layers, dec.kv_heads, dec.head_dim),
            size,
            # long samples of as many prompts as rows can be left; one more waits to be begun
            prompt_rows=min(len(self.prompts), self.max_rows + 1) if prompt_pages else 0,
            prompt_pages=prompt_pages,
            rows=self.max_rows,
            # behind shared full pages come at most the rest of one page and the answer
            row_pages=-(-(longest + size - 1) // size) if prompt_pages else columns,
            columns=columns,
            landmark=self.schedule.landmark if chooses else None,
            sparse_from=self.schedule.dense_layers,
            dtype=dec.dtype,
            device=dec.device,
        )

    def _make_batch(self, longest: int, keep_hidden: bool) -> RolloutBatch:
        dec, shape, at = self.decoder, (self.count, longest), self.decoder.device
        hidden = (*shape, dec.width)
        return RolloutBatch(
            prompts=self.prompts,
            prompt_N=torch.arange(self.count, device=at) // self.samples,
            tokens_NT=torch.zeros(shape, dtype=torch.long, device=at),
            generated_N=torch.zeros(self.count, dtype=torch.long, device=at),
            finished_N=torch.zeros(self.count, dtype=torch.bool, device=at),
            logp_NT=torch.zeros(shape, dtype=dec.wide, device=at),
            raw_logp_NT=torch.zeros(shape, dtype=dec.wide, device=at),
            hidden_NTM=torch.zeros(hidden, dtype=dec.dtype, device=at) if keep_hidden else None,
            attended_NT=torch.zeros(shape, dtype=torch.long, device=at),
        )

    @property
    def active(self) -> int:
        """Sequences that are being decoded."""
        return len(self.rows)

    @property
    def ended(self) -> int:
        """Samples that are done."""
        return self.count - len(self.queue) - len(self.rows)

    @property
    def pages_held(self) -> int:
        """Pages of rows in use."""
        cache = self.cache
        rows = len(self.rows) * cache.own.pages + len(self.open) * cache.prompts.pages
        return rows * cache.own.heads

    def room(self) -> bool:
        """Whether it is time to start queued samples: some at once, so that prompts are prefilled
        together.
        """
        free = self.max_rows - len(self.rows)
        return bool(self.queue) and free >= min(len(self.queue), max(1, self.max_rows // 8))

    def admit(self) -> None:
        """Start queued samples while rows are free, prefilling prompts as they come up."""
        starts = [self.queue.popleft() for _ in range(self.max_rows - len(self.rows)) if self.queue]
        if not starts:
            return
        owners = [s // self.samples for s in starts]
        hidden = self._share(owners) if self.samples > 1 else self._prefill_rows(owners)
        sample_A = np.array(starts, np.int64)
        length = np.array([len(self.prompts[p]) for p in owners], np.int64)
        noise = self.noise.first(sample_A, length)
        tokens = self._draw(sample_A, np.zeros_like(length), 0, hidden, noise)
        shared = prompt = np.zeros_like(length)
        if self.samples > 1:
            shared = length // self.cache.page_size * self.cache.page_size
            row_of = {p.index: row for row, p in enumerate(self.open)}
            prompt = np.array([row_of[p] for p in owners], np.int64)
        self.rows.add(sample_A, length, shared, prompt, tokens)
        self._come_or_gone()
        self._retire()

    def _prefill(self, fresh: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        """Dense pass over prompts, in one batch padded on the right.

        Returns of each prompt the last token's final hidden state [M], and keys and values
        [layers, 2, K, T, D].
        """
        lengths = [len(self.prompts[p]) for p in fresh]
        tokens = torch.zeros((len(fresh), max(lengths)), dtype=torch.long)
        for row, p in enumerate(fresh):
            tokens[row, : lengths[row]] = torch.tensor(self.prompts[p])
        hidden, layers = self.decoder.prefill(tokens.to(self.decoder.device))
        both = torch.stack(layers)
        last = [hidden[row, n - 1] for row, n in enumerate(lengths)]
        return last, [both[:, :, row, :, :n] for row, n in enumerate(lengths)]

    def _prefill_rows(self, owners: list[int]) -> Tensor:
        """Prefill prompts of one sample into the next rows; returns hidden states [A, M]."""
        hidden, caches = self._prefill(owners)
        for row, kv in enumerate(caches, len(self.rows)):
            self.cache.write_prompt(self.cache.own, row, kv)
        return torch.stack(hidden)

    def _share(self, owners: list[int]) -> Tensor:
        """Let the next rows go on from shared prompts; returns hidden states [A, M]."""
        known = {p.index for p in self.open}
        fresh = sorted(set(owners) - known)
        if fresh:
            for p, hidden, kv in zip(fresh, *self._prefill(fresh), strict=True):
                self.cache.write_prompt(self.cache.prompts, len(self.open), kv)
                n = len(self.prompts[p])
                self.open.append(OpenPrompt(p, n, self.samples, hidden.clone()))
        row_of = {p.index: row for row, p in enumerate(self.open)}
        start = len(self.rows)
        for p in sorted(set(owners)):  # samples start in order, so those of a prompt are together
            row, members = row_of[p], owners.count(p)
            prompt = self.open[row]
            shared = prompt.length // self.cache.page_size * self.cache.page_size
            self.cache.open(row, slice(start, start + members), shared, prompt.length)
            prompt.waiting -= members
            start += members
        return torch.stack([self.open[row_of[p]].hidden for p in owners])

    def step(self) -> None:
        """Feed each row its newest token and draw the next one."""
        rows = self.rows
        if self.layout is None:
            self.layout = lay_out(rows, len(self.open), self.cache)
        hidden = decode_step(
            self.decoder, self.cache, rows, self.layout, self.schedule, self.kept_pages
        )
        noise = self.noise.next(rows)
        rows.token = self._draw(rows.sample, rows.base_generated, rows.steps - 1, hidden, noise)
        self._retire()

    def _draw(
        self, sample_A: Ints, first: Ints, step: int, hidden_AM: Tensor, noise_A: Tensor
    ) -> Tensor:
        """Draw token number `first` + `step` of each sample from its hidden state; note it."""
        logits = self.decoder.logits(hidden_AM)
        if self.forced_NT is None:
            drawn = sample(logits, self.rollout, noise_A)
        else:
            given = self.forced_NT[sample_A, first + step]
            tokens = torch.from_numpy(given).to(logits.device)
            logp = (logits / (self.rollout.temperature or 1.0)).log_softmax(-1)
            raw = logp.gather(1, tokens[:, None]).squeeze(1)
            drawn = Sampled(tokens, raw, raw)
        self.recorder.add(sample_A, first, step, drawn, hidden_AM)
        return drawn.tokens

    def _come_or_gone(self) -> None:
        """After sequences came or went: what is known until the next time."""
        self.layout = None
        rows = self.rows
        if len(rows):
            self.until_cap = int((self.cap_N[rows.sample] - rows.base_generated).min())

    def _retire(self) -> None:
        """Close sequences that stopped or reached their cap, and prompts that none needs."""
        rows = self.rows
        stopped = self.stops[rows.token.cpu().numpy()] if self.any_stop else None
        at_cap = rows.steps >= self.until_cap
        if not at_cap and (stopped is None or self.forced_NT is not None or not stopped.any()):
            return
        over = rows.generated >= self.cap_N[rows.sample]
        if stopped is not None:
            if self.forced_NT is not None:
                stopped &= over  # a given answer ends where it ends, whatever it holds
            self.finished_N[rows.sample[stopped]] = True
            over |= stopped
        self.generated_N[rows.sample[over]] = rows.generated[over]
        before, sources, targets = rows.drop(over)
        self.noise.drop(before)
        self._come_or_gone()
        if len(sources):
            tokens = int((rows.length - rows.shared).max())
            columns = int(rows.length.max()) // self.cache.page_size
            self.cache.move(sources, targets, tokens, columns)
        used = set(rows.prompt.tolist())
        for row in reversed(range(len(self.open))):
            if row not in used and not self.open[row].waiting:
                self._close(row)

    def _close(self, row: int) -> None:
        last = len(self.open) - 1
        prompt = self.open.pop()
        if row != last:
            self.cache.move_prompt(last, row)
            self.open[row] = prompt
            self.rows.prompt[self.rows.prompt == last] = row

    def result(self) -> RolloutBatch:
        """The batch, once no sample is left."""
        self.recorder.flush()
        batch, device = self.batch, self.decoder.device
        batch.generated_N.copy_(torch.from_numpy(self.generated_N))
        batch.finished_N.copy_(torch.from_numpy(self.finished_N))
        attended = torch.from_numpy(self.attended).to(device)[batch.length_NT]
        batch.attended_NT.copy_(attended * batch.counted_NT)
        return batch
