"""One rollout on several processes: who reads which prompts.

Shares depend on nothing but the work, so that every process finds the same ones by itself, and a
process that starts again its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparrow_lab.errors import UserError

Ints = npt.NDArray[np.int64]


def rank_and_world() -> tuple[int, int, int]:
    """(rank, processes, rank on this machine), as torchrun or Slurm's srun tell them.

    Raises:
        UserError: what they tell makes no sense.
    """
    for names in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    ):
        found = [os.environ.get(name) for name in names]
        if found[0] is None or found[1] is None:
            continue
        try:
            rank, world, local = (int(x) for x in (found[0], found[1], found[2] or found[0]))
        except ValueError:
            rank, world, local = -1, 0, 0
        if not 0 <= rank < world:
            said = ", ".join(f"{n}={v}" for n, v in zip(names, found, strict=True))
            raise UserError(f"{said} do not say which process this is", "environment")
        return rank, world, local
    return 0, 1, 0


def share_out(prompt_lengths: Sequence[int], samples: int, cap: int, world: int) -> list[Ints]:
    """Sample numbers of each process, rising; all samples, each once.

    Prompts stay whole, so that their samples share pages, unless there are fewer prompts than
    processes. The largest piece goes to whoever has least, by the keys and values that its
    decoding would read if every sample ran to the cap.
    """
    pieces: list[tuple[float, list[int]]] = []
    for p, length in enumerate(prompt_lengths):
        numbers = list(range(p * samples, (p + 1) * samples))
        parts = 1 if len(prompt_lengths) >= world else min(world, samples)
        for part in range(parts):
            chosen = numbers[part::parts]
            pieces.append((len(chosen) * cap * (length + cap / 2), chosen))
    shares: list[list[int]] = [[] for _ in range(world)]
    work = [0.0] * world
    for cost, numbers in sorted(pieces, key=lambda piece: (-piece[0], piece[1])):
        least = min(range(world), key=lambda rank: (work[rank], rank))
        work[least] += cost
        shares[least] += numbers
    return [np.array(sorted(share), np.int64) for share in shares]
