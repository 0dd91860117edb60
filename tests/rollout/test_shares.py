"""Every sample belongs to one process, and none has much more work than the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrow_lab.errors import UserError
from sparrow_lab.rollout.shares import rank_and_world, share_out


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40),
    samples=st.integers(1, 8),
    cap=st.integers(1, 5000),
    world=st.integers(1, 9),
)
def test_shares_are_whole_and_even(lengths: list[int], samples: int, cap: int, world: int) -> None:
    shares = share_out(lengths, samples, cap, world)
    assert len(shares) == world
    together = np.concatenate(shares)
    assert sorted(together.tolist()) == list(range(len(lengths) * samples))
    assert all((np.diff(share) > 0).all() for share in shares)
    work = [sum(cap * (lengths[s // samples] + cap / 2) for s in share) for share in shares]
    largest = max(samples * cap * (n + cap / 2) for n in lengths)
    assert max(work) - min(work) <= largest * (1 + 1e-9)
    if len(lengths) >= world:
        owner = {int(s): rank for rank, share in enumerate(shares) for s in share}
        assert all(
            len({owner[p * samples + j] for j in range(samples)}) == 1 for p in range(len(lengths))
        )


def test_torchrun_and_slurm_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    assert rank_and_world() == (0, 1, 0)
    for name, value in (("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_LOCALID", "1")):
        monkeypatch.setenv(name, value)
    assert rank_and_world() == (5, 8, 1)
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    assert rank_and_world() == (3, 4, 3)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(UserError, match="RANK=4, WORLD_SIZE=4"):
        rank_and_world()
