"""The noise of the rows in use, hashed some steps ahead.

Shape suffixes: A rows in use, J steps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparrow_lab.rollout.rows import Rows
from sparrow_lab.rollout.sampling import uniform_noise

Ints = npt.NDArray[np.int64]

STEPS = 32
"""Steps hashed at once: one pass of numpy for many steps."""


class RowNoise:
    """Uniform numbers keyed by (seed, sample, position), for rows that go on by one token a step.

    Args:
        keys_N: key of each sample of the rollout.
    """

    def __init__(self, seed: int, keys_N: Ints, device: torch.device) -> None:
        self._seed, self._keys_N, self._device = seed, keys_N, device
        self._block_JA: Tensor | None = None
        self._used = 0

    def first(self, sample: Ints, position: Ints) -> Tensor:
        """Noise of the first tokens of samples that come in; the rows must ask anew."""
        self._block_JA = None
        noise = uniform_noise(self._seed, self._keys_N[sample], position)
        return torch.from_numpy(noise).to(self._device)

    def next(self, rows: Rows) -> Tensor:
        """Noise of the rows' next tokens, [A] in float64."""
        if self._block_JA is None or self._used == STEPS:
            position_JA = rows.length + np.arange(STEPS)[:, None]
            keys_JA = np.broadcast_to(self._keys_N[rows.sample], position_JA.shape)
            noise = uniform_noise(self._seed, keys_JA, position_JA)
            self._block_JA, self._used = torch.from_numpy(noise).to(self._device), 0
        self._used += 1
        return self._block_JA[self._used - 1]

    def drop(self, before: Ints) -> None:
        """Follow the rows that are left; `before` as returned by `Rows.drop`."""
        if self._block_JA is not None:
            self._block_JA = self._block_JA[:, torch.from_numpy(before).to(self._device)]
