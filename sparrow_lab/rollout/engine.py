"""The rollout engine: continuous batching over a paged cache, sparse or dense, in plain torch.

Dense and sparse are one path: a dense layer, a dense schedule or a sequence within its budget
passes every page to the same attention. Prompts are prefilled densely; generated tokens never
are, since that would be another policy.

Shape suffixes: B active sequences, P columns of the page table, K KV heads, G query heads of a KV
head, D head dim, M model width.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_kernels.page_choice import choose_pages, page_scores
from sparrow_kernels.paged_decode import paged_decode
from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.cache import PagedCache
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.sampling import sample, uniform_noise
from sparrow_lab.sparsity.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Ints = npt.NDArray[np.int64]


@dataclass
class _Prompt:
    """A prefilled prompt: its pages wait for the samples that have not been admitted yet."""

    pages: list[int]
    length: int
    waiting: int
    hidden: Tensor


@dataclass
class _Active:
    """The sequences that are being decoded, one row each."""

    table_BP: Tensor
    pages: list[list[int]] = field(default_factory=list)
    sample: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    length: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    generated: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    token_B: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))


class RolloutEngine:
    """Generates samples for prompts with one model and one schedule.

    Args:
        model: any supported decoder of transformers, see `decoder.FAMILIES`.
        schedule: how many tokens to attend to at each length; `Schedule.dense` for all.
        max_batch: sequences decoded at once; the pool is sized for as many of the longest.
    """

    def __init__(self, model: PreTrainedModel, schedule: Schedule, max_batch: int = 256) -> None:
        self.decoder = Decoder(model)
        self.max_batch = max_batch
        self.pages_held = 0
        """Cache pages that the last rollout did not give back; anything but 0 is a leak."""
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
        self.schedule = schedule

    def refresh(self) -> None:
        """Take over the model's weights after an update."""
        self.decoder.refresh()

    @torch.no_grad()
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
    ) -> RolloutBatch:
        """Generate `samples` answers for each prompt.

        Args:
            prompts: token ids, at least one each.
            max_new_tokens: cap on generated tokens of a sample.
            stop_tokens: ids that end a sample; they belong to it. Empty runs to the cap.
            seed, sample_ids: key of the noise; `sample_ids` [N] default to 0 .. N - 1.
            forced: one given answer a sample: its tokens are fed instead of sampled ones, and
                the log-probabilities are those of the given tokens.
            keep_hidden: keep the final hidden state of every token, for acceptance.
            progress: called with (samples finished, samples).

        Raises:
            UserError: a prompt is empty, or prompt and answer pass the model's context.
            ValueError: `forced` does not hold one answer a sample, or an empty one.
        """
        began = time.perf_counter()
        count = len(prompts) * samples
        ids = np.arange(count, dtype=np.int64) if sample_ids is None else sample_ids
        longest = max((len(f) for f in forced), default=0) if forced else max_new_tokens
        self._check(prompts, longest)
        if forced is not None and (len(forced) != count or not all(len(f) for f in forced)):
            raise ValueError(f"forced needs one answer, not empty, for each of {count} samples")
        run = _Run(self, prompts, samples, rollout, longest, stop_tokens, seed, ids, forced)
        run.allocate(keep_hidden)

        def tell(ended: int) -> None:
            if ended and progress:
                progress(count - len(run.queue) - len(run.active.sample), count)

        while run.queue or len(run.active.sample):
            tell(run.admit())
            while len(run.active.sample) and (not run.queue or not run.room()):
                run.step()
                tell(run.retire())
        self.pages_held = run.cache.used_pages
        run.batch.seconds = time.perf_counter() - began
        return run.batch

    def _check(self, prompts: Sequence[Sequence[int]], longest: int) -> None:
        if not prompts or any(not len(p) for p in prompts):
            raise UserError("a rollout needs at least one prompt, and prompts at least one token")
        context = int(self.decoder.model.config.max_position_embeddings)
        most = max(len(p) for p in prompts) + longest
        if most > context:
            raise UserError(
                f"prompt and answer take {most} tokens, but the model's context is {context}",
                "task.max_new_tokens",
            )


class _Run:
    """One call of `generate`: queue, active rows, cache and results."""

    def __init__(
        self,
        engine: RolloutEngine,
        prompts: Sequence[Sequence[int]],
        samples: int,
        rollout: RolloutConfig,
        longest: int,
        stop_tokens: Sequence[int],
        seed: int,
        sample_ids: Ints,
        forced: Sequence[Sequence[int]] | None,
    ) -> None:
        self.decoder, self.schedule = engine.decoder, engine.schedule
        self.prompts = [tuple(int(t) for t in p) for p in prompts]
        self.samples, self.rollout, self.longest = samples, rollout, longest
        self.stop = torch.tensor(list(stop_tokens), dtype=torch.long)
        self.seed, self.sample_ids, self.forced = seed, sample_ids, forced
        self.queue = deque(range(len(prompts) * samples))
        self.max_batch = engine.max_batch
        self.ready: dict[int, _Prompt] = {}

    def allocate(self, keep_hidden: bool) -> None:
        """Make the cache for the sequences that run at once, and the result tensors."""
        dec, schedule = self.decoder, self.schedule
        count, longest = len(self.prompts) * self.samples, self.longest
        size = schedule.page_size
        most = max(len(p) for p in self.prompts)
        self.columns = -(-(most + longest) // size)
        rows = min(count, self.max_batch)
        # private pages of every row, and the pages of as many prompts as can be open at once: long
        # samples of many prompts can be left together, and one more prompt waits to be begun
        private = -(-longest // size) + 1
        shared = -(-most // size) * min(len(self.prompts), rows + 1)
        self.cache = PagedCache(
            dec.layers,
            rows * private + shared,
            dec.kv_heads,
            size,
            dec.head_dim,
            schedule.landmark,
            dec.layers if schedule.is_dense else schedule.dense_layers,
            dec.dtype,
            dec.device,
        )
        self.active = _Active(torch.zeros((0, self.columns), dtype=torch.long, device=dec.device))
        wide = torch.float64 if dec.dtype == torch.float64 else torch.float32
        at = dec.device
        self.batch = RolloutBatch(
            prompts=self.prompts,
            prompt_N=torch.arange(count, device=at) // self.samples,
            tokens_NT=torch.zeros((count, longest), dtype=torch.long, device=at),
            generated_N=torch.zeros(count, dtype=torch.long, device=at),
            finished_N=torch.zeros(count, dtype=torch.bool, device=at),
            logp_NT=torch.zeros((count, longest), dtype=wide, device=at),
            raw_logp_NT=torch.zeros((count, longest), dtype=wide, device=at),
            hidden_NTM=torch.zeros((count, longest, dec.width), dtype=dec.dtype, device=at)
            if keep_hidden
            else None,
            attended_NT=torch.zeros((count, longest), dtype=torch.long, device=at),
        )

    def room(self) -> bool:
        """Whether a queued sample can start now."""
        return bool(self.queue) and len(self.active.sample) < self.max_batch

    def admit(self) -> int:
        """Start queued samples while rows are free, prefilling prompts as they come up.

        Returns how many ended at once.
        """
        starts: list[int] = []
        while self.queue and len(self.active.sample) + len(starts) < self.max_batch:
            starts.append(self.queue.popleft())
        if not starts:
            return 0
        fresh = sorted({s // self.samples for s in starts} - self.ready.keys())
        self._prefill([p for p in fresh if p not in self.ready])
        hidden = torch.stack([self.ready[s // self.samples].hidden for s in starts])
        length = np.array([len(self.prompts[s // self.samples]) for s in starts], np.int64)
        tokens_B = self._record(np.array(starts, np.int64), length, hidden, None)
        a, rows = self.active, []
        for s in starts:
            pages = self._open(s // self.samples)
            a.pages.append(pages)
            rows.append(pages + [0] * (self.columns - len(pages)))
        table = torch.tensor(rows, dtype=torch.long, device=self.decoder.device)
        a.table_BP = torch.cat([a.table_BP, table])
        a.sample = np.concatenate([a.sample, np.array(starts, np.int64)])
        a.length = np.concatenate([a.length, length])
        a.generated = np.concatenate([a.generated, np.ones(len(starts), np.int64)])
        a.token_B = torch.cat([a.token_B.to(tokens_B.device), tokens_B])
        return self.retire()

    def _prefill(self, fresh: list[int]) -> None:
        """Dense pass over new prompts, in one batch padded on the right."""
        if not fresh:
            return
        lengths = [len(self.prompts[p]) for p in fresh]
        tokens = torch.zeros((len(fresh), max(lengths)), dtype=torch.long)
        for row, p in enumerate(fresh):
            tokens[row, : lengths[row]] = torch.tensor(self.prompts[p])
        hidden, layers = self.decoder.prefill(tokens.to(self.decoder.device))
        for row, p in enumerate(fresh):
            n = lengths[row]
            pages = self.cache.take(-(-n // self.cache.page_size))
            for i, (k, v) in enumerate(layers):
                self.cache.write_prompt(i, pages, k[row, :n], v[row, :n])
            self.ready[p] = _Prompt(pages, n, self.samples, hidden[row, n - 1].clone())

    def _open(self, p: int) -> list[int]:
        """Pages for one more sample of a prompt: full ones shared, a partial one copied."""
        prompt = self.ready[p]
        full = prompt.length // self.cache.page_size
        pages, partial = prompt.pages[:full], prompt.pages[full:]
        self.cache.share(pages)
        if partial:
            own = self.cache.take(1)
            self.cache.copy_page(partial[0], own[0])
            pages = pages + own
        prompt.waiting -= 1
        if not prompt.waiting:
            self.cache.release(prompt.pages)
            del self.ready[p]
        return list(pages)

    def step(self) -> None:
        """Feed each active sequence its newest token and draw the next one."""
        a, dec, size = self.active, self.decoder, self.schedule.page_size
        position = a.length
        for row in np.flatnonzero(position % size == 0):
            (page,) = self.cache.take(1)
            a.pages[row].append(page)
            a.table_BP[row, len(a.pages[row]) - 1] = page
        a.length = position + 1
        pages = -(-a.length // size)
        keep = self.schedule.pages_for(a.length)
        sparse = bool((keep < pages).any())
        used = int(pages.max())
        table_BP = a.table_BP[:, :used]
        at = torch.from_numpy(position).to(dec.device)
        length_B = at + 1
        page_B = table_BP.gather(1, (at // size)[:, None]).squeeze(1)
        slot_B = at % size
        filled = page_B[slot_B == size - 1]
        all_11P = torch.arange(used, device=dec.device)[None, None]
        if sparse:
            width = int(keep.max())
            pages_B = torch.from_numpy(pages).to(dec.device)
            keep_B = torch.from_numpy(keep).to(dec.device)
        first, last = self.schedule.reserved_pages()
        x = dec.embed(a.token_B)
        turns = dec.turns(at)
        for i in range(dec.layers):
            q, k, v = dec.project(i, x, turns)
            self.cache.append(i, page_B, slot_B, k, v)
            self.cache.update_landmarks(i, filled)
            q_BKGD = q.unflatten(1, (dec.kv_heads, -1))
            chosen = all_11P
            marks = self.cache.landmarks[i]
            if sparse and marks is not None:
                index = all_11P[0]
                candidate_BP = (index >= first) & (index < pages_B[:, None] - last)
                scores = page_scores(q_BKGD, marks[table_BP], candidate_BP, self.schedule.score)
                chosen = choose_pages(scores, pages_B, keep_B, first, last, width)
            y = paged_decode(
                q_BKGD,
                self.cache.keys[i],
                self.cache.values[i],
                table_BP,
                chosen,
                length_B,
                dec.scale,
            )
            x = dec.finish(i, x, y.flatten(1))
        hidden = dec.final(x)
        a.token_B = self._record(a.sample, a.length, hidden, self.schedule.attended_for(a.length))
        a.generated = a.generated + 1

    def _record(
        self, samples: Ints, length: Ints, hidden_BM: Tensor, attended: Ints | None
    ) -> Tensor:
        """Draw a token from each hidden state and note it; `length` is also its position."""
        batch, dec = self.batch, self.decoder
        logits = dec.logits(hidden_BM)
        drawn = sample(
            logits, self.rollout, uniform_noise(self.seed, self.sample_ids[samples], length)
        )
        tokens, logp, raw = drawn
        row = torch.from_numpy(samples).to(dec.device)
        column = batch.generated_N[row]
        if self.forced is not None:
            given = [self.forced[s][j] for s, j in zip(samples, column.tolist(), strict=True)]
            tokens = torch.tensor(given, dtype=torch.long, device=dec.device)
            temperature = self.rollout.temperature or 1.0
            raw = (logits / temperature).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)
            logp = raw
        batch.tokens_NT[row, column] = tokens
        batch.logp_NT[row, column] = logp
        batch.raw_logp_NT[row, column] = raw
        if batch.hidden_NTM is not None:
            batch.hidden_NTM[row, column] = hidden_BM
        if attended is not None:
            batch.attended_NT[row, column] = torch.from_numpy(attended).to(dec.device)
        batch.generated_N[row] += 1
        return tokens

    def retire(self) -> int:
        """Close sequences that stopped or reached their cap; returns how many."""
        a, batch = self.active, self.batch
        if not len(a.sample):
            return 0
        cap = np.full(len(a.sample), self.longest, np.int64)
        stopped = torch.isin(a.token_B, self.stop.to(a.token_B.device)).cpu().numpy()
        if self.forced is not None:
            # a given answer ends where it ends, whatever it holds
            cap = np.array([len(self.forced[s]) for s in a.sample], np.int64)
            stopped &= a.generated >= cap
        over = stopped | (a.generated >= cap)
        if not over.any():
            return 0
        batch.finished_N[torch.from_numpy(a.sample[stopped]).to(self.decoder.device)] = True
        for row in np.flatnonzero(over):
            self.cache.release(a.pages[row])
        keep = np.flatnonzero(~over)
        index = torch.from_numpy(keep).to(self.decoder.device)
        a.table_BP, a.token_B = a.table_BP[index], a.token_B[index]
        a.pages = [a.pages[row] for row in keep]
        a.sample, a.length, a.generated = a.sample[keep], a.length[keep], a.generated[keep]
        return int(over.sum())
