"""The newest token written beside the choice of pages: what the two ops give in turn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.landmarks import landmark_rows, write_kv
from sparrow_kernels.page_choice import page_choice, write_and_choose
from tests.kernels.devices import DEVICES, dtypes_of, poisoned
from tests.kernels.test_choice_kernel import calls


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    call = draw(calls())
    score = draw(st.sampled_from(["group_mean", "softmax_max"]))
    return {**call, "score": score, "landmark": "mean" if call["rows"] == 1 else "minmax"}


class Layer:
    """A cache as a step finds it: all but the newest token of each sequence is in its pages."""

    def __init__(self, call: dict[str, Any], device: str, dtype: torch.dtype) -> None:
        noise = torch.Generator().manual_seed(call["seed"])
        K, G, D, S = call["K"], call["G"], call["D"], call["S"]
        counts = [math.ceil(n / S) for n in call["lengths"]]
        B, P, N = len(counts), max([*counts, 1]), sum(counts) + 2

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=noise).to(device, dtype)

        order = torch.randperm(N, generator=noise).tolist()
        table = torch.zeros((B, P), dtype=torch.int32)
        for b, count in enumerate(counts):
            table[b, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        self.q, self.new = draw(B, K, G, D), (draw(B, K, D), draw(B, K, D))
        self.pools = (draw(N, K, S, D), draw(N, K, S, D), draw(N, K, landmark_rows("minmax"), D))
        if call["landmark"] == "mean":
            self.pools = (*self.pools[:2], self.pools[2][:, :, :1])
        self.table = table.to(device)
        self.lengths = torch.tensor(call["lengths"], dtype=torch.int32, device=device)
        self.keep = torch.tensor(call["keep"], dtype=torch.int32, device=device)
        self.first, self.last, self.score = call["first"], call["last"], call["score"]
        self.landmark = call["landmark"]
        self.width = min(max([*call["keep"], self.first + self.last]), P)

    def together(self, backend: Any) -> tuple[Tensor, ...]:
        pools = tuple(x.clone() for x in self.pools)
        places = (self.table, self.lengths, self.keep, self.first, self.last, self.width)
        more: dict[str, Any] = {"landmark": self.landmark, "backend": backend}
        return write_and_choose(self.q, *pools, *self.new, *places, self.score, **more), *pools

    def apart(self, backend: Any) -> tuple[Tensor, ...]:
        pools = tuple(x.clone() for x in self.pools)
        where = (None, self.lengths, self.table, self.landmark)
        write_kv(*pools, *self.new, *where, backend=backend)
        places = (self.table, self.lengths, self.keep, self.pools[0].shape[2])
        more = (self.first, self.last, self.width, self.score)
        return page_choice(self.q, pools[2], *places, *more, backend=backend), *pools


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=25)
@given(call=layers())
def test_one_launch_gives_the_bits_of_two(device: str, call: dict[str, Any]) -> None:
    for dtype in dtypes_of(device):
        layer = Layer(call, device, dtype)
        with poisoned():
            together, apart = layer.together("triton"), layer.apart("triton")
        for ours, expected in zip(together, apart, strict=True):
            assert torch.equal(ours, expected)


@settings(max_examples=25)
@given(call=layers())
def test_the_definition_is_one_after_the_other(call: dict[str, Any]) -> None:
    layer = Layer(call, "cpu", torch.float64)
    for ours, expected in zip(layer.together(None), layer.apart(None), strict=True):
        assert torch.equal(ours, expected)


def test_what_does_not_fit_is_refused() -> None:
    call = {"lengths": [9], "keep": [2], "K": 1, "G": 2, "D": 8, "S": 4, "first": 1, "last": 1}
    call |= {"score": "group_mean", "landmark": "mean", "seed": 0}
    layer = Layer(call, "cpu", torch.float32)
    layer.last = 0
    with pytest.raises(ValueError, match="last must be 1 or more"):
        layer.together(None)
    layer.last, layer.new = 1, (layer.new[0][:, :, :4], layer.new[1])
    with pytest.raises(ValueError, match="new keys must be"):
        layer.together(None)
