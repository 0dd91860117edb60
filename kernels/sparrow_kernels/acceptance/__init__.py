"""Acceptance of sparse against dense next-token distributions.

On a CPU the plain definition (`naive`) is what runs; on a GPU kernels that keep no more than a
chunk of logits in memory. Which one can be said with `form`, as tests and benchmarks do.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sparrow_kernels.acceptance import naive
from sparrow_kernels.acceptance.naive import (
    TokenStatistics,
    acceptance_from_logits,
    top_k_acceptance,
)
from sparrow_kernels.dispatch import checks_values, interpreted

__all__ = [
    "TokenStatistics",
    "acceptance_from_hidden",
    "acceptance_from_logits",
    "top_k_acceptance",
    "top_k_from_hidden",
]

Form = Literal["auto", "naive", "chunks", "recompute"]
"""`chunks` stores the logits of some tokens. `recompute` stores none: it makes them once to find
the log-sum-exps, unless these are known, and once more to use them."""


def acceptance_from_hidden(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    tokens_T: Tensor,
    temperature: float,
    chunk: int | None = None,
    *,
    lse_sparse_T: Tensor | None = None,
    lse_dense_T: Tensor | None = None,
    form: Form = "auto",
    debug: bool | None = None,
) -> TokenStatistics:
    """Compare the sparse actor with the dense policy token by token, over the full vocabulary.

    Args:
        sparse_TM, dense_TM: final hidden states, after the last norm.
        head_VM: the output head that both share.
        tokens_T: the sampled tokens, int64. The kernels give NaN for the log-probabilities of one
            outside the vocabulary; the plain definition raises.
        temperature: above 0.
        chunk: tokens whose logits are in memory at once; None chooses.
        lse_sparse_T, lse_dense_T: log-sum-exp over the vocabulary of logits / temperature, where
            it is known already, in float32 (float64 for float64 inputs).
        form: how; `auto` goes by the device. Only `naive` has gradients.
        debug: look at token numbers first, which waits for the GPU; None asks SPARROW_DEBUG.

    Returns:
        Results [T] in float32 (float64 for float64 inputs, on a CPU). No tokens give empty ones.
        NaN in a token's hidden state makes its results NaN.

    Raises:
        ValueError: temperature 0; shapes, dtypes or devices that do not fit; in debug mode a token
            outside the vocabulary.
    """
    naive.check_temperature(temperature)
    _check_hidden(sparse_TM, dense_TM, head_VM)
    _check_per_token("tokens_T", tokens_T, sparse_TM, (torch.int64,))
    for name, lse in (("lse_sparse_T", lse_sparse_T), ("lse_dense_T", lse_dense_T)):
        if lse is not None:
            _check_per_token(name, lse, sparse_TM, (torch.float32, torch.float64))
    if checks_values(debug):
        _check_tokens(tokens_T, len(head_VM))
    if form == "auto":
        form = _by_device(sparse_TM)
        # with nothing to find first, no product is made twice
        both = lse_sparse_T is not None and lse_dense_T is not None
        if form == "chunks" and chunk is None and both:
            form = "recompute"
    args = (sparse_TM, dense_TM, head_VM, tokens_T, temperature)
    if form == "naive":
        return naive.acceptance_from_hidden(*args, chunk or 2048, lse_sparse_T, lse_dense_T)
    _check_fused(sparse_TM, dense_TM, head_VM)
    from sparrow_kernels.acceptance import fused
    from sparrow_kernels.acceptance.configs import config_for

    args = (sparse_TM, dense_TM, head_VM, tokens_T.contiguous(), temperature)
    sums = _float32(lse_sparse_T), _float32(lse_dense_T)
    config = config_for(sparse_TM.device)
    if form == "recompute":
        return fused.acceptance_by_recompute(*args, *sums, config)
    return fused.acceptance_in_chunks(*args, chunk, *sums, config)


def top_k_from_hidden(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    k: int,
    temperature: float,
    chunk: int | None = None,
    *,
    form: Literal["auto", "naive", "chunks"] = "auto",
) -> tuple[Tensor, Tensor]:
    """The paper's estimator, `top_k_acceptance`, from hidden states.

    Returns:
        (acceptance, kept dense mass), each [T].

    Raises:
        ValueError: temperature 0; shapes, dtypes or devices that do not fit.
    """
    naive.check_temperature(temperature)
    _check_hidden(sparse_TM, dense_TM, head_VM)
    if form == "auto":
        form = _by_device(sparse_TM)
    if form == "naive":
        return naive.top_k_from_hidden(sparse_TM, dense_TM, head_VM, k, temperature, chunk or 2048)
    _check_fused(sparse_TM, dense_TM, head_VM)
    from sparrow_kernels.acceptance import fused
    from sparrow_kernels.acceptance.configs import config_for

    config = config_for(sparse_TM.device)
    return fused.top_k_in_chunks(sparse_TM, dense_TM, head_VM, k, temperature, chunk, config)


def _by_device(x: Tensor) -> Literal["naive", "chunks"]:
    return "chunks" if x.is_cuda and x.dtype != torch.float64 else "naive"


def _float32(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def _check_hidden(sparse_TM: Tensor, dense_TM: Tensor, head_VM: Tensor) -> None:
    shapes = [tuple(x.shape) for x in (sparse_TM, dense_TM, head_VM)]
    if sparse_TM.dim() != 2 or shapes[0] != shapes[1] or head_VM.dim() != 2:
        raise ValueError(
            "acceptance takes hidden states [T, M] of both sides and a head [V, M], "
            f"found {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    if shapes[2][1] != shapes[0][1] or not shapes[2][0]:
        raise ValueError(f"hidden states {shapes[0]} do not fit the head {shapes[2]}")
    kinds = {(x.dtype, x.device) for x in (sparse_TM, dense_TM, head_VM)}
    if len(kinds) > 1:
        raise ValueError(
            f"hidden states and head differ in dtype or device: {sorted(map(str, kinds))}"
        )


def _check_per_token(
    name: str, x: Tensor, hidden_TM: Tensor, dtypes: tuple[torch.dtype, ...]
) -> None:
    if tuple(x.shape) != (len(hidden_TM),) or x.dtype not in dtypes:
        raise ValueError(
            f"{name} must be [{len(hidden_TM)}] of {dtypes[0]}, found {tuple(x.shape)} of {x.dtype}"
        )
    if x.device != hidden_TM.device:
        raise ValueError(f"{name} is on {x.device}, hidden states are on {hidden_TM.device}")


def _check_tokens(tokens_T: Tensor, V: int) -> None:
    wrong_T = (tokens_T < 0) | (tokens_T >= V)
    if bool(wrong_T.any()):
        t = int(wrong_T.nonzero()[0])
        raise ValueError(f"tokens_T[{t}] is {int(tokens_T[t])}, the vocabulary has 0 to {V - 1}")


def _check_fused(sparse_TM: Tensor, dense_TM: Tensor, head_VM: Tensor) -> None:
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16, torch.float32)
    if not sparse_TM.is_cuda:
        if not interpreted():
            raise ValueError(f"the kernels need a CUDA device, hidden states: {sparse_TM.device}")
        dtypes = (torch.float32,)  # the interpreter's product of bfloat16 is wrong
    if sparse_TM.dtype not in dtypes:
        raise ValueError(f"the kernels take {dtypes} on {sparse_TM.device}, not {sparse_TM.dtype}")
    for name, x in (("sparse_TM", sparse_TM), ("dense_TM", dense_TM), ("head_VM", head_VM)):
        if not x.is_contiguous():
            raise ValueError(f"{name} must be contiguous, found strides {x.stride()}")
