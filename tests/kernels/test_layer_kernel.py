"""Norms, rotation and gate of a decoder layer: kernels against definitions, these against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrow_kernels.layer import naive, norm_and_rotate, rms_norm, swiglu
from tests.kernels.devices import DEVICES, poisoned

DTYPES = [torch.float32, torch.bfloat16]
CLOSE = {torch.float32: 2e-6, torch.bfloat16: 5e-2}
"""In bfloat16 a value rounded the other way before a weight or a difference moves by two steps."""


def made(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=noise, dtype=torch.float64).to(dtype)


def table(positions: int, pairs: int) -> torch.Tensor:
    angle = torch.arange(positions)[:, None] * 100.0 ** -(torch.arange(pairs) / pairs)
    return torch.stack([angle.cos(), angle.sin()], dim=-1).float().contiguous()


# ------------------------------------------------------------------ the definitions
def test_rms_norm_is_torchs() -> None:
    x, weight = made((5, 12), 0), made((12,), 1)
    expected = F.rms_norm(x, (12,), weight, 1e-6)
    torch.testing.assert_close(naive.rms_norm(x, weight, 1e-6), expected, atol=1e-14, rtol=0)


def test_rotation_turns_each_pair_by_its_angle_and_leaves_the_value() -> None:
    y, turns = made((3, 2, 4, 6), 0), table(20, 3)
    before, position = y.clone(), torch.tensor([0, 7, 19])
    naive.norm_and_rotate(y, None, turns, position, 1e-6)
    pairs = torch.view_as_complex(before[:, :, :-1].unflatten(-1, (3, 2)))
    angle = torch.view_as_complex(turns.double())[position][:, None, None]
    expected = torch.view_as_real(pairs * angle).flatten(-2)
    torch.testing.assert_close(y[:, :, :-1], expected, atol=1e-14, rtol=0)
    assert torch.equal(y[:, :, -1], before[:, :, -1])


def test_head_norms_come_before_the_rotation() -> None:
    y, turns, weight = made((3, 2, 4, 6), 0), table(20, 3), made((4, 6), 1)
    expected, position = y.clone(), torch.tensor([3, 7, 19])
    expected[:, :, :-1] = F.rms_norm(expected, (6,), None, 1e-6)[:, :, :-1] * weight[:-1]
    naive.norm_and_rotate(expected, None, turns, position, 1e-6)
    naive.norm_and_rotate(y, weight, turns, position, 1e-6)
    torch.testing.assert_close(y, expected, atol=1e-14, rtol=0)


# ------------------------------------------------------------------ the kernels
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=8)
@given(N=st.integers(0, 4), M=st.integers(1, 70), seed=st.integers(0, 9))
def test_rms_norm_kernel(device: str, dtype: torch.dtype, N: int, M: int, seed: int) -> None:
    wide = made((N, M + 3), seed, dtype).to(device)
    x, weight = wide[:, 2 : M + 2], made((M,), 1, dtype).to(device)
    with poisoned():
        ours = rms_norm(x, weight, 1e-6, backend="triton")
    expected = naive.rms_norm(x, weight, 1e-6)
    torch.testing.assert_close(ours, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [True, False])
@settings(max_examples=8)
@given(
    N=st.integers(0, 3),
    K=st.integers(1, 3),
    H=st.integers(2, 8),
    C=st.integers(1, 10),
    seed=st.integers(0, 9),
)
def test_norm_and_rotate_kernel(
    device: str, dtype: torch.dtype, norm: bool, N: int, K: int, H: int, C: int, seed: int
) -> None:
    y = made((N, K, H, 2 * C), seed, dtype).to(device)
    weight = made((H, 2 * C), 1, dtype).to(device) if norm else None
    position = torch.randint(0, 50, (N,), generator=torch.Generator().manual_seed(seed))
    args: tuple[Any, ...] = (weight, table(50, C).to(device), position.to(device), 1e-6)
    expected = y.clone()
    naive.norm_and_rotate(expected, *args)
    norm_and_rotate(y, *args, backend="triton")
    torch.testing.assert_close(y, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("N", "inner"), [(0, 4), (1, 1), (3, 37), (2, 2100)])
def test_swiglu_kernel(device: str, dtype: torch.dtype, N: int, inner: int) -> None:
    both = (3 * made((N, 2 * inner), 0)).to(device, dtype)
    with poisoned():
        ours = swiglu(both, backend="triton")
    torch.testing.assert_close(ours, naive.swiglu(both), atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: rms_norm(torch.ones(2, 3), torch.ones(4), 1e-6), r"weight must be \[3\]"),
        (lambda: rms_norm(torch.ones(3, 2).T, torch.ones(3), 1e-6), "by rows"),
        (lambda: swiglu(torch.ones(2, 3)), r"found \(2, 3\)"),
        (
            lambda: norm_and_rotate(
                torch.ones(2, 1, 3, 4), None, torch.ones(9, 3, 2), torch.zeros(2).long(), 1e-6
            ),
            r"turns must be \[P, 2, 2\]",
        ),
        (
            lambda: norm_and_rotate(
                torch.ones(2, 1, 3, 4), None, torch.ones(9, 2, 2), torch.zeros(3).long(), 1e-6
            ),
            r"positions must be \[2\]",
        ),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused(call: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        call()
