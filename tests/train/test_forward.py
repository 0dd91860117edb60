"""Parts of the dense pass against torch's own, and the ways that only other sizes take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sparrow_lab.train import attention
from sparrow_lab.train.forward import dense_hidden, rms_norm, rotate
from sparrow_lab.train.packing import LIKE, pack
from tests.rollout.small_models import own_copy, small_model
from tests.train.plain import assert_close, gradients, random_batch


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("weight_shape", [(6,), (3, 6)])
def test_the_norm_has_the_gradients_of_torchs(weight_shape: tuple[int, ...]) -> None:
    x = normal(5, 3, 6).requires_grad_()
    weight = normal(*weight_shape, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, 1e-3), (x, weight))
    told = F.rms_norm(x, (6,), None, 1e-3) * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-3), told, atol=1e-14, rtol=0)


def test_the_norm_of_bfloat16_is_taken_in_float32() -> None:
    x, weight = normal(64, 32).bfloat16(), normal(32, seed=1).bfloat16()
    told = F.rms_norm(x.float(), (32,), None, 1e-6).bfloat16() * weight
    assert torch.equal(rms_norm(x, weight, 1e-6), told)


def test_rotation_and_its_gradient() -> None:
    x, angle = normal(4, 3, 6).requires_grad_(), normal(4, 1, 3, seed=1)
    assert torch.autograd.gradcheck(lambda x: rotate(x, angle.cos(), angle.sin()), (x,))
    turned = torch.polar(torch.ones_like(angle), angle) * torch.complex(x[..., :3], x[..., 3:])
    told = torch.cat([turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotate(x, angle.cos(), angle.sin()), told, atol=1e-14, rtol=0)


@pytest.mark.parametrize("prompts", [[9, 9], [9, 2]], ids=["even", "ragged"])
def test_long_blocks_take_torchs_attention(
    prompts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[dict[str, Tensor]] = []
    for most in (attention.MOST_WEIGHTS, 0):
        monkeypatch.setattr(attention, "MOST_WEIGHTS", most)
        model: Any = own_copy(small_model("qwen3", 2))
        batch = random_batch(model, prompts, [[5, 1, 7, 6], [6, 3]])
        for rows in pack(batch, range(6)):
            dense_hidden(model, rows).square().sum().backward()
        got.append(gradients(model))
    assert_close(got[0], got[1])


@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_bfloat16_is_close_to_float32(family: str) -> None:
    wide: Any = small_model(family, 2, dtype=torch.float32)
    narrow: Any = own_copy(wide).bfloat16()
    batch = random_batch(wide, [9, 4], [[5, 1, 7], [6, 3]])
    for rows in pack(batch, range(5)):
        hidden = dense_hidden(narrow, rows)
        assert hidden.dtype == torch.bfloat16
        told = dense_hidden(wide, rows).detach()
        gap = (hidden.detach().float() - told).abs().mean() / told.abs().mean()
        assert float(gap) < 0.05
        hidden.float().square().sum().backward()
    assert all(torch.isfinite(g).all() for g in gradients(narrow).values())


def test_blocks_hold_samples_of_like_length_and_every_token_once() -> None:
    model = small_model("qwen3", 2)
    answers = [[1, 2, 40, 39, 20], [20, 8, 7, 3, 30]]
    batch = random_batch(model, [12, 5], answers)
    (rows,) = pack(batch, range(10))
    assert len(rows.tokens_L) == 12 + 5 + sum(n - 1 for group in answers for n in group)
    queries = torch.cat([b.query_NT[b.real_NT] for b in rows.blocks])
    assert queries.sort().values.tolist() == list(range(len(rows.tokens_L)))
    for block in rows.blocks:
        lengths = block.real_NT.sum(dim=1)
        assert int(lengths.min()) >= LIKE * int(lengths.max())
