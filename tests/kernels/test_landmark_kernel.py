"""The fused write of keys, values and landmarks, against the definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.dispatch import Backend
from sparrow_kernels.landmarks import landmark_rows, page_landmarks, write_kv
from tests.kernels.devices import DEVICES


@dataclass
class Case:
    """Arguments of one call; pools hold NaN where nothing was written."""

    keys_NKSD: Tensor
    values_NKSD: Tensor
    marks_NKRD: Tensor | None
    new_keys_TKD: Tensor
    new_values_TKD: Tensor
    starts_B1: Tensor | None
    lengths_B: Tensor
    table_BP: Tensor
    kind: Any

    def written(self, backend: Backend | None, **more: Any) -> list[Tensor]:
        """Copies of the pools after the call."""
        arguments = {
            name: x.clone() if isinstance(x, Tensor) else x for name, x in vars(self).items()
        }
        write_kv(**arguments, backend=backend, **more)
        pools = ("keys_NKSD", "values_NKSD", "marks_NKRD")
        return [arguments[name] for name in pools if arguments[name] is not None]


def make_case(
    past: list[int],
    fresh: list[int],
    *,
    K: int = 2,
    S: int = 4,
    D: int = 8,
    kind: Any = "mean",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    marks: bool = True,
    decoding: bool = False,
    seed: int = 0,
) -> Case:
    """Sequences with `past` tokens in the cache that get `fresh` new ones each."""
    noise = torch.Generator().manual_seed(seed)
    lengths = [a + n if n else 0 for a, n in zip(past, fresh, strict=True)]
    counts = [math.ceil(n / S) for n in lengths]
    P, N = max([*counts, 1]), sum(counts) + 3
    order = torch.randperm(N, generator=noise).tolist()
    table = torch.zeros((len(past), P), dtype=torch.int32)
    keys, values = (torch.full((N, K, S, D), float("nan")) for _ in range(2))
    for b, count in enumerate(counts):
        table[b, :count] = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        for t in range(past[b] if lengths[b] else 0):
            for pool in (keys, values):
                pool[table[b, t // S], :, t % S] = torch.randn(K, D, generator=noise)
    tokens = len(past) if decoding else sum(fresh)
    new = [torch.randn(tokens, K, D, generator=noise).to(device, dtype) for _ in range(2)]
    starts = torch.tensor([0, *torch.tensor(fresh).cumsum(0).tolist()], dtype=torch.int32)
    made = torch.full((N, K, landmark_rows(kind), D), float("nan")).to(device, dtype)
    return Case(
        keys.to(device, dtype),
        values.to(device, dtype),
        made if marks else None,
        *new,
        None if decoding else starts.to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        table.to(device),
        kind,
    )


def assert_right(case: Case, **more: Any) -> None:
    """Bits of keys, values and bounds; means within the rounding of their dtype."""
    told, ours = case.written("torch"), case.written("triton", **more)
    for a, b in zip(told[:2], ours[:2], strict=True):
        assert torch.equal(a.nan_to_num(99.0), b.nan_to_num(99.0))
    if case.marks_NKRD is not None:
        close = 1e-6 if case.keys_NKSD.dtype == torch.float32 else 8e-3
        torch.testing.assert_close(ours[2], told[2], atol=close, rtol=close, equal_nan=True)
        if case.kind == "minmax":
            assert torch.equal(told[2].nan_to_num(99.0), ours[2].nan_to_num(99.0))


options = st.fixed_dictionaries(
    {
        "K": st.integers(1, 3),
        "S": st.sampled_from([1, 3, 4, 16]),
        "D": st.sampled_from([8, 12, 40]),
        "kind": st.sampled_from(["mean", "minmax"]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16]),
        "marks": st.booleans(),
        "seed": st.integers(0, 99),
    }
)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=15)
@given(
    rows=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 24)), min_size=1, max_size=3),
    option=options,
)
def test_prompts_and_their_continuations(
    device: str, rows: list[tuple[int, int]], option: dict[str, Any]
) -> None:
    """Several prompts in one call, some of them after tokens that are there already."""
    past, fresh = [a for a, _ in rows], [n for _, n in rows]
    case = make_case(past, fresh, **option, device=device)
    assert_right(case)
    assert_right(case, longest=max(fresh))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=25)
@given(past=st.lists(st.integers(0, 40), min_size=1, max_size=4), option=options, data=st.data())
def test_one_token_of_each_sequence(
    device: str, past: list[int], option: dict[str, Any], data: st.DataObject
) -> None:
    """Decoding: a landmark appears just when a page fills; empty slots write nothing."""
    fresh = data.draw(st.lists(st.integers(0, 1), min_size=len(past), max_size=len(past)))
    case = make_case(past, fresh, **option, device=device, decoding=True)
    assert_right(case)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["mean", "minmax"])
def test_token_by_token_leaves_what_the_whole_prompt_does(device: str, kind: Any) -> None:
    whole = make_case([0, 0], [17, 9], S=4, kind=kind, device=device)
    told = whole.written("triton")
    step = make_case([0, 0], [17, 9], S=4, kind=kind, device=device)
    for t in range(17):
        lengths = torch.tensor([t + 1, t + 1 if t < 9 else 0], dtype=torch.int32, device=device)
        rows = torch.tensor([t, min(17 + t, 25)], device=device)
        write_kv(
            step.keys_NKSD,
            step.values_NKSD,
            step.marks_NKRD,
            whole.new_keys_TKD[rows],
            whole.new_values_TKD[rows],
            None,
            lengths,
            step.table_BP,
            kind,
            backend="triton",
        )
    assert step.marks_NKRD is not None
    for a, b in zip(told, (step.keys_NKSD, step.values_NKSD, step.marks_NKRD), strict=True):
        torch.testing.assert_close(a, b, atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
def test_keys_of_a_projection_with_values_between(device: str) -> None:
    """New keys and values as views of one tensor, pools as views of another."""
    case = make_case([3, 0], [6, 8], device=device)
    both = torch.stack([case.new_keys_TKD, case.new_values_TKD], dim=1)
    pool = torch.stack([case.keys_NKSD, case.values_NKSD], dim=1)
    views = Case(
        pool[:, 0], pool[:, 1], case.marks_NKRD, both[:, 0], both[:, 1],
        case.starts_B1, case.lengths_B, case.table_BP, "mean",
    )  # fmt: skip
    write_kv(**vars(views), backend="triton")
    told = case.written("torch")
    assert views.marks_NKRD is not None
    for a, b in zip(told, (pool[:, 0], pool[:, 1], views.marks_NKRD), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("S", [4, 16, 64, 128])
@pytest.mark.parametrize("D", [64, 80, 128, 256])
def test_long_prompts(S: int, D: int) -> None:
    case = make_case([0, 77, 5], [2000, 63, 1], S=S, D=D, dtype=torch.bfloat16, device="cuda")
    assert_right(case, longest=2000)


def test_the_definition_is_a_loop_over_tokens() -> None:
    """The naive write against the plainest one there is."""
    case = make_case([2, 0, 5], [7, 0, 3], S=4)
    assert case.marks_NKRD is not None and case.starts_B1 is not None
    keys, values, marks = case.written("torch")
    for b in range(3):
        begin, end = case.starts_B1[b : b + 2].tolist()
        past = int(case.lengths_B[b]) - (end - begin)
        for i in range(end - begin):
            page, slot = int(case.table_BP[b, (past + i) // 4]), (past + i) % 4
            assert torch.equal(keys[page, :, slot], case.new_keys_TKD[begin + i])
            assert torch.equal(values[page, :, slot], case.new_values_TKD[begin + i])
            filled = page_landmarks(keys[page : page + 1], "mean")[0]
            assert torch.equal(marks[page], filled) if slot == 3 else True
    assert int(torch.isfinite(marks).all(-1).all(-1).all(-1).sum()) == 2 + 1


# ------------------------------------------------------------------ what is refused
def test_what_does_not_fit_is_named() -> None:
    def refused(debug: bool = False, **changes: Any) -> str:
        case = make_case([2, 0], [7, 3])
        with pytest.raises(ValueError, match=r"^write_kv: ") as caught:
            write_kv(**{**vars(case), **changes}, debug=debug)
        return str(caught.value)

    good = make_case([2, 0], [7, 3])
    table = good.table_BP.clone()
    table[0, 1] = 99
    numbers = torch.zeros(3, dtype=torch.int32)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"keys_NKSD": torch.zeros(2, 2, 4, 8)}, "alike"),
        ({"marks_NKRD": torch.zeros(2, 2, 1, 8)}, "marks must be"),
        ({"kind": "minmax"}, "marks must be"),
        ({"new_keys_TKD": torch.zeros(10, 2, 8).double()}, "new keys must be"),
        ({"new_values_TKD": torch.zeros(9, 2, 8)}, "new values must be"),
        ({"new_values_TKD": torch.zeros(10, 8, 2).transpose(1, 2)}, "contiguous"),
        ({"table_BP": numbers[None]}, "table must be"),
        ({"lengths_B": torch.zeros(2)}, "lengths must hold"),
        ({"starts_B1": numbers[:2]}, "B + 1 = 3"),
        ({"table_BP": table, "debug": True}, "table[0, 1] is page 99"),
        ({"lengths_B": torch.tensor([99, 3]), "debug": True}, "length 99 is beyond"),
        ({"lengths_B": torch.tensor([5, 3]), "debug": True}, "more new tokens"),
    ]
    for changes, words in wrong:
        assert words in refused(**changes), changes
