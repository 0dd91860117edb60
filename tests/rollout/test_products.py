"""Products of few tokens: the same numbers whichever side comes first."""

from __future__ import annotations

import pytest
import torch

from sparrow_lab.rollout.products import FEW, LARGE, add_product, linear


@pytest.mark.parametrize("tokens", [1, FEW[0], 10, FEW[-1], FEW[-1] + 1])
@pytest.mark.parametrize("width", [24, LARGE // 256])  # a small and a large matrix
@pytest.mark.parametrize("with_bias", [False, True])
def test_both_ways_give_the_plain_product(tokens: int, width: int, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias, begun = (
        torch.randn(shape, dtype=torch.float64, generator=generator)
        for shape in ((tokens, 256), (width, 256), (width,), (tokens, width))
    )
    plain = x @ weight.T + (bias if with_bias else 0)
    out = linear(x, weight, bias if with_bias else None)
    assert out.is_contiguous()
    torch.testing.assert_close(out, plain)
    added = begun.clone()
    add_product(added, x, weight.T)
    torch.testing.assert_close(added, begun + x @ weight.T)


def test_leading_axes_are_kept() -> None:
    x, weight = torch.randn(2, 10, 256), torch.randn(LARGE // 256, 256)
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))
