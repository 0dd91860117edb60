"""The batch of a rollout while it fills, in host memory.

Shape suffixes as in `rollout.batch`.
"""

from __future__ import annotations

import numpy as np
import torch

from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.run import PagedRun
from sparrow_lab.rollout.paged.work import Work
from sparrow_lab.sparsity.schedule import Schedule


def make_batch(decoder: Decoder, work: Work, keep_hidden: bool) -> RolloutBatch:
    """Room for every sample up to the largest cap; hidden states are pinned beside a GPU."""
    count = len(work.keys)
    shape = (count, int(work.caps.max()))
    hidden = None
    if keep_hidden:
        pinned = decoder.device.type == "cuda"
        width = (*shape, decoder.width)
        hidden = torch.zeros(width, dtype=decoder.dtype, pin_memory=pinned)
    return RolloutBatch(
        prompts=work.prompts,
        prompt_N=torch.arange(count) // work.samples,
        tokens_NT=torch.zeros(shape, dtype=torch.long),
        generated_N=torch.zeros(count, dtype=torch.long),
        finished_N=torch.zeros(count, dtype=torch.bool),
        logp_NT=torch.zeros(shape, dtype=decoder.wide),
        raw_logp_NT=torch.zeros(shape, dtype=decoder.wide),
        hidden_NTM=hidden,
        attended_NT=torch.zeros(shape, dtype=torch.long),
    )


def close_samples(
    batch: RolloutBatch, run: PagedRun, schedule: Schedule, numbers: list[int]
) -> None:
    """Write what is known of ended samples beside their tokens."""
    for s in numbers:
        n = int(run.generated_N[s])
        batch.generated_N[s] = n
        batch.finished_N[s] = bool(run.finished_N[s])
        start = len(batch.prompts[int(batch.prompt_N[s])])
        attended = schedule.attended_for(np.arange(start, start + n))
        batch.attended_NT[s, :n] = torch.from_numpy(attended)
        batch.attended_NT[s, :1] = 0  # the first token comes from the dense prefill
