"""Fused acceptance, with stored logits and without, against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sparrow_kernels.acceptance import (
    TokenStatistics,
    acceptance_from_hidden,
    naive,
    top_k_from_hidden,
)
from tests.kernels.devices import DEVICES, dtypes_of, poisoned

Fused = Literal["chunks", "recompute"]
FORMS: list[Fused] = ["chunks", "recompute"]


@dataclass
class Case:
    """Hidden states of two sides, the second near the first, a head and tokens."""

    sparse_TM: Tensor
    dense_TM: Tensor
    head_VM: Tensor
    tokens_T: Tensor
    temperature: float

    def definition(self) -> TokenStatistics:
        """In float64, from the numbers that the kernel is given."""
        wide = (x.double() for x in (self.sparse_TM, self.dense_TM, self.head_VM))
        return naive.acceptance_from_hidden(*wide, self.tokens_T, self.temperature)

    def run(self, form: Fused, **settings: Any) -> TokenStatistics:
        args = (self.sparse_TM, self.dense_TM, self.head_VM, self.tokens_T, self.temperature)
        with poisoned():
            return acceptance_from_hidden(*args, form=form, **settings)

    def lse(self) -> tuple[Tensor, Tensor]:
        """Log-sum-exps of both sides."""
        rows = (self.sparse_TM, self.dense_TM)
        sparse, dense = ((x.double() @ self.head_VM.double().T) / self.temperature for x in rows)
        return sparse.logsumexp(-1).float(), dense.logsumexp(-1).float()


def make_case(
    device: str, dtype: torch.dtype, T: int, M: int, V: int, temperature: float = 1.0, seed: int = 0
) -> Case:
    noise = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=noise)

    sparse = normal(T, M)
    dense = sparse + 0.2 * normal(T, M)
    # logits of a spread that makes some tokens nearly certain
    head = normal(V, M) * 4 * M**-0.5
    tokens = torch.randint(0, V, (T,), generator=noise)
    parts = (x.to(device, dtype) for x in (sparse, dense, head))
    return Case(*parts, tokens.to(device), temperature)


def assert_close(ours: TokenStatistics, told: TokenStatistics, atol: float = 2e-5) -> None:
    for name, x, y in zip(TokenStatistics._fields, ours, told, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(
            x.double(), y, atol=atol, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=25)
@given(
    T=st.sampled_from([1, 3, 17, 40]),
    M=st.sampled_from([8, 16, 33, 40]),
    V=st.sampled_from([1, 2, 31, 64, 100, 130]),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    form=st.sampled_from(FORMS),
    known=st.tuples(st.booleans(), st.booleans()),
    seed=st.integers(0, 99),
)
def test_any_shape_equals_the_definition(
    device: str,
    T: int,
    M: int,
    V: int,
    temperature: float,
    form: Fused,
    known: tuple[bool, bool],
    seed: int,
) -> None:
    for dtype in dtypes_of(device):
        case = make_case(device, dtype, T, M, V, temperature, seed)
        lse = [x if know else None for x, know in zip(case.lse(), known, strict=True)]
        told = case.run(form, lse_sparse_T=lse[0], lse_dense_T=lse[1])
        assert_close(told, case.definition())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_log_sum_exps_are_taken_as_they_are(device: str, form: Fused) -> None:
    """Both given as one too high: every probability is divided by e."""
    case = make_case(device, torch.float32, 5, 16, 50)
    sparse, dense = case.lse()
    told = case.run(form, lse_sparse_T=sparse + 1, lse_dense_T=dense + 1)
    whole = case.definition()
    torch.testing.assert_close(
        told.acceptance.double(), whole.acceptance / torch.e, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(told.logp_dense.double(), whole.logp_dense - 1, atol=1e-4, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_equal_sides_accept_everything(device: str, form: Fused) -> None:
    for dtype in dtypes_of(device):
        case = make_case(device, dtype, 20, 32, 300)
        case.dense_TM = case.sparse_TM.clone()
        told = case.run(form)
        assert (told.acceptance <= 1).all()
        assert (told.acceptance > 1 - 1e-5).all()
        assert torch.equal(told.logp_sparse, told.logp_dense)
        assert torch.equal(told.kl_sparse_dense, torch.zeros_like(told.acceptance))
        assert torch.equal(told.kl_dense_sparse, torch.zeros_like(told.acceptance))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_nan_in_one_tokens_hidden_state_is_nan_in_its_results_alone(
    device: str, form: Fused
) -> None:
    case = make_case(device, torch.float32, 6, 16, 70)
    before = case.run(form)
    case.sparse_TM[2, 3] = float("nan")
    told = case.run(form)
    for x, y in zip(told, before, strict=True):
        rest = torch.arange(6, device=device) != 2
        assert torch.equal(x[rest], y[rest])
    compared = (told.acceptance, told.logp_sparse, told.kl_sparse_dense, told.kl_dense_sparse)
    assert all(bool(x[2].isnan()) for x in compared)
    assert torch.equal(told.entropy_dense, before.entropy_dense)
    defined = case.definition()
    for x, y in zip(told, defined, strict=True):
        assert torch.equal(x.isnan(), y.isnan())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_a_token_outside_the_vocabulary_has_no_log_probability(device: str, form: Fused) -> None:
    case = make_case(device, torch.float32, 4, 16, 40)
    before = case.run(form)
    case.tokens_T[1], case.tokens_T[3] = 40, -1
    told = case.run(form)
    assert told.logp_sparse.isnan().tolist() == [False, True, False, True]
    assert told.logp_dense.isnan().tolist() == [False, True, False, True]
    assert torch.equal(told.acceptance, before.acceptance)


def test_debug_mode_looks_at_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case("cpu", torch.float32, 4, 16, 40)
    args = (case.sparse_TM, case.dense_TM, case.head_VM, case.tokens_T, 1.0)
    acceptance_from_hidden(*args, debug=True)
    case.tokens_T[2] = 40
    monkeypatch.setenv("SPARROW_DEBUG", "1")
    with pytest.raises(ValueError, match=r"tokens_T\[2\] is 40, the vocabulary has 0 to 39"):
        acceptance_from_hidden(*args)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [1, 3, 8, 100])
def test_results_do_not_depend_on_the_chunk(device: str, chunk: int) -> None:
    case = make_case(device, torch.float32, 11, 24, 90)
    assert_close(case.run("chunks", chunk=chunk), case.definition())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_no_tokens_give_empty_results(device: str, form: Fused) -> None:
    told = make_case(device, torch.float32, 0, 16, 40).run(form)
    assert [tuple(x.shape) for x in told] == [(0,)] * 6


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=25)
@given(
    T=st.sampled_from([1, 5, 40]),
    V=st.sampled_from([1, 31, 130]),
    k=st.integers(1, 40),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    seed=st.integers(0, 99),
)
def test_top_k_equals_the_definition(
    device: str, T: int, V: int, k: int, temperature: float, seed: int
) -> None:
    # float32 throughout: which tokens are the k best must not turn on rounding
    case = make_case(device, torch.float32, T, 16, V, temperature, seed)
    args = (case.sparse_TM, case.dense_TM, case.head_VM)
    told = naive.top_k_from_hidden(*(x.double() for x in args), k, temperature)
    with poisoned():
        ours = top_k_from_hidden(*args, k, temperature, form="chunks")
    for x, y in zip(ours, told, strict=True):
        torch.testing.assert_close(x.double(), y, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: setattr(c, "temperature", 0.0), "greedy"),
        (lambda c: setattr(c, "dense_TM", c.dense_TM[:-1]), r"found \(4, 16\), \(3, 16\)"),
        (lambda c: setattr(c, "head_VM", c.head_VM[:, :8]), "do not fit the head"),
        (lambda c: setattr(c, "head_VM", c.head_VM.half()), "differ in dtype"),
        (lambda c: setattr(c, "tokens_T", c.tokens_T.int()), "tokens_T must be"),
        (lambda c: setattr(c, "sparse_TM", c.sparse_TM.T.contiguous().T), "must be contiguous"),
    ],
)
def test_wrong_arguments_are_one_clear_error(
    change: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_case("cpu", torch.float32, 4, 16, 30)
    change(case)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(ValueError, match=says):
        case.run("chunks")


def test_kernels_on_a_cpu_are_refused_without_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = make_case("cpu", torch.float32, 4, 16, 30)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="CUDA"):
        case.run("recompute")


def test_on_a_cpu_the_definition_runs() -> None:
    """To the bit: results of finished runs rest on it."""
    case = make_case("cpu", torch.float32, 30, 16, 60)
    args = (case.sparse_TM, case.dense_TM, case.head_VM, case.tokens_T, 0.7)
    assert all(
        torch.equal(x, y)
        for x, y in zip(
            acceptance_from_hidden(*args), naive.acceptance_from_hidden(*args), strict=True
        )
    )


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
def test_memory_is_bounded_at_a_real_vocabulary(form: Fused) -> None:
    case = make_case("cuda", torch.bfloat16, 2048, 256, 151_936)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    told = case.run(form)
    assert torch.cuda.max_memory_allocated() - before < 1e9
    some = slice(0, 2048, 64)
    part = Case(
        case.sparse_TM[some], case.dense_TM[some], case.head_VM, case.tokens_T[some], 1.0
    ).definition()
    assert_close(TokenStatistics(*(x[some] for x in told)), part, atol=1e-4)
