"""Collects what each step says of its tokens, and writes it into the batch now and then.

Shape suffixes: N samples, T generated tokens of the longest, A rows, M model width.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.sampling import Sampled

Ints = npt.NDArray[np.int64]

STEPS = 64
"""Steps kept before they are written: few index operations, little memory twice."""


class Recorder:
    """Fills the per-token tensors of a batch."""

    def __init__(self, batch: RolloutBatch) -> None:
        self.batch = batch
        self._places: list[tuple[Ints, Ints, int]] = []
        self._parts: list[tuple[Tensor, ...]] = []

    def add(self, sample: Ints, first: Ints, step: int, drawn: Sampled, hidden_AM: Tensor) -> None:
        """Note one token a row: number `first` + `step` of that sample."""
        self._places.append((sample, first, step))
        self._parts.append((*drawn, hidden_AM))
        if len(self._parts) >= STEPS:
            self.flush()

    def flush(self) -> None:
        """Write what has been noted."""
        if not self._parts:
            return
        batch = self.batch
        samples = np.concatenate([sample for sample, _, _ in self._places])
        columns = np.concatenate([first + step for _, first, step in self._places])
        device = batch.tokens_NT.device
        at = torch.from_numpy(samples).to(device), torch.from_numpy(columns).to(device)
        targets = (batch.tokens_NT, batch.logp_NT, batch.raw_logp_NT, batch.hidden_NTM)
        for target, parts in zip(targets, zip(*self._parts, strict=True), strict=True):
            if target is not None:
                target[at] = torch.cat(parts).to(device)
        self._places, self._parts = [], []
