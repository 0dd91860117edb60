"""The kernel of a draw: on the right token of the definition's distribution, with its numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_kernels.sampling import draw_tokens, tempered, uniform_noise
from tests.kernels.devices import DEVICES, poisoned

EDGE = 1e-6
"""How far rounding may move the edge between two tokens, in probability."""


def keys(B: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Key of each row's noise."""
    row = torch.arange(B, device=device)
    return torch.full_like(row, seed), row * 7 + 2**40, (row + 5).to(torch.int32)


def check(logits: torch.Tensor, temperature: torch.Tensor, seed: int, forced: torch.Tensor) -> None:
    """Every row's token is one whose share of the distribution holds the noise."""
    B, V = logits.shape
    seeds, samples, positions = keys(B, seed, str(logits.device))
    with poisoned():
        drawn = draw_tokens(
            logits, temperature, seeds, samples, positions, forced, backend="triton"
        )
    logp = tempered(logits.cpu().double(), temperature.cpu().double())
    noise = uniform_noise(seeds, samples, positions.long()).cpu()
    assert drawn.tokens.dtype == torch.int64
    for b in range(B):
        token = int(drawn.tokens[b])
        assert 0 <= token < V
        raw = float(logp[b, token])
        assert float(drawn.raw_logp[b]) == pytest.approx(raw, abs=2e-5)
        if int(forced[b]) >= 0:
            assert token == int(forced[b])
        elif float(temperature[b]) == 0:
            assert token == int(logits[b].float().argmax())
        else:
            below = float(logp[b, :token].exp().sum())
            assert below - EDGE <= float(noise[b]) <= below + float(logp[b, token].exp()) + EDGE
            assert logp[b, token] > -torch.inf
        drawn_greedily = float(temperature[b]) == 0 and int(forced[b]) < 0
        assert float(drawn.logp[b]) == (0.0 if drawn_greedily else float(drawn.raw_logp[b]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(max_examples=12)
@given(
    B=st.integers(0, 3),
    V=st.sampled_from([1, 5, 2048, 2049, 5000]),
    seed=st.integers(0, 2**32 - 1),
    temperatures=st.lists(st.sampled_from([0.0, 0.3, 1.0, 2.5]), min_size=3, max_size=3),
    given_token=st.integers(-1, 0),
    gone=st.booleans(),
)
def test_draws(
    device: str,
    dtype: torch.dtype,
    B: int,
    V: int,
    seed: int,
    temperatures: list[float],
    given_token: int,
    gone: bool,
) -> None:
    noise = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn((B, V + 3), generator=noise)).to(device, dtype)[:, :V]
    if gone and V > 4:  # whole blocks may have no weight at all
        logits[:, : V // 2 + 1] = -torch.inf
    forced = torch.full((B,), -1)
    forced[1:2] = given_token if not gone else -1
    temperature = torch.tensor(temperatures[:B])
    check(logits, temperature.to(device), seed, forced.to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_of_equal_logits_is_the_largest(device: str) -> None:
    logits = torch.zeros((2, 6000), device=device)
    logits[1, [2500, 2700, 5000]] = 1.0
    drawn = draw_tokens(
        logits,
        torch.zeros(2, device=device),
        *keys(2, 0, device),
        torch.full((2,), -1, device=device),
        backend="triton",
    )
    assert drawn.tokens.tolist() == [0, 2500]


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_are_the_definitions(device: str) -> None:
    """Noise is the same to the bit; of a thousand rows only an edge may fall otherwise."""
    B, V = 200, 300
    logits = 2 * torch.randn((B, V), generator=torch.Generator().manual_seed(1)).to(device)
    args: tuple[Any, ...] = (
        logits,
        torch.ones(B, device=device),
        *keys(B, 3, device),
        torch.full((B,), -1, device=device),
    )
    ours = draw_tokens(*args, backend="triton")
    told = draw_tokens(*args, backend="torch")
    assert int((ours.tokens != told.tokens).sum()) <= 1


def test_what_does_not_fit_a_draw_is_refused() -> None:
    logits, one = torch.zeros(2, 5), torch.ones(2)
    whole = torch.zeros(2, dtype=torch.int64)
    for args, what in (
        ((logits.T, one, whole, whole, whole, whole), "by rows"),
        ((logits, one, whole[:1], whole, whole, whole), r"seed must be \[2\]"),
        ((logits, one, whole, whole, whole.float(), whole), "positions"),
        ((logits, whole, whole, whole, whole, whole), "temperatures"),
    ):
        with pytest.raises(ValueError, match=what):
            draw_tokens(*args)
