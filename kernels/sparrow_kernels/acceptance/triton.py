"""Kernels of fused acceptance.

Two forms. `statistics_of_logits` reads float32 logits that a matrix product left in memory, once
to find both log-sum-exps and once for the results. `lse_of_hidden` and `statistics_of_hidden` make
tiles of logits, use them and forget them: nothing of the size of the vocabulary is stored, but
every product is computed for each of the two.

A program leaves partial results of its tokens; they are put together in a fixed order, so equal
input gives equal output. Shape suffixes: T tokens, V vocabulary, M model width, N parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparrow_kernels.acceptance.configs import ReadConfig, TileConfig

RESULTS = 6
"""acceptance, logp sparse, logp dense, KL(sparse || dense), KL(dense || sparse), entropy."""

LOWEST = tl.constexpr(-3.0e38)
"""Where a running maximum begins: finite, so that the difference of two is never NaN."""

ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def _add_exp(m, s, x):
    """Let x enter the running maximum m and the sum s of exp(. - m)."""
    new = tl.maximum(m, x)
    return new, s * tl.exp(m - new) + tl.exp(x - new)


@triton.jit
def _lse(m, s):
    """Log-sum-exp of all running pairs."""
    top = tl.max(m, axis=0)
    return tl.log(tl.sum(s * tl.exp(m - top), axis=0)) + top


@triton.jit
def _terms(x, y):
    """What log-probabilities x (sparse) and y (dense) add to the four sums over the vocabulary.

    A probability of exactly 0 contributes 0, whatever its logarithm; NaN stays NaN.
    """
    p, q = tl.exp(x), tl.exp(y)
    gap = x - y
    kl_sd = tl.where(p == 0, 0.0, p * gap)
    kl_ds = tl.where(q == 0, 0.0, -q * gap)
    return tl.minimum(p, q, propagate_nan=ALL), kl_sd, kl_ds, tl.where(q == 0, 0.0, -q * y)


@triton.jit
def _read(
    sparse_ptr,  # [T, V] float32
    dense_ptr,
    tokens_ptr,  # [T] int64
    lse_sparse_ptr,  # [T] float32
    lse_dense_ptr,
    out_ptr,  # [6, stride_out] float32
    V,
    stride_out,
    inverse,  # 1 / temperature
    KNOW_SPARSE: tl.constexpr,
    KNOW_DENSE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    sparse_ptr += t * V
    dense_ptr += t * V
    at = tl.arange(0, BLOCK)
    m_s, s_s = tl.full([BLOCK], LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    m_d, s_d = m_s, s_s
    if not (KNOW_SPARSE and KNOW_DENSE):
        for start in range(0, V, BLOCK):
            inside = start + at < V
            if not KNOW_SPARSE:
                x = tl.load(sparse_ptr + start + at, mask=inside, other=-float("inf"))
                m_s, s_s = _add_exp(m_s, s_s, x * inverse)
            if not KNOW_DENSE:
                y = tl.load(dense_ptr + start + at, mask=inside, other=-float("inf"))
                m_d, s_d = _add_exp(m_d, s_d, y * inverse)
    lse_s = tl.load(lse_sparse_ptr + t) if KNOW_SPARSE else _lse(m_s, s_s)
    lse_d = tl.load(lse_dense_ptr + t) if KNOW_DENSE else _lse(m_d, s_d)
    alpha = tl.zeros([BLOCK], tl.float32)
    kl_sd, kl_ds, entropy = alpha, alpha, alpha
    for start in range(0, V, BLOCK):
        inside = start + at < V
        x = tl.load(sparse_ptr + start + at, mask=inside, other=-float("inf"))
        y = tl.load(dense_ptr + start + at, mask=inside, other=-float("inf"))
        a, b, c, d = _terms(x * inverse - lse_s, y * inverse - lse_d)
        alpha += a
        kl_sd += b
        kl_ds += c
        entropy += d
    token = tl.load(tokens_ptr + t)
    known = (token >= 0) & (token < V)
    x = tl.load(sparse_ptr + token, mask=known, other=float("nan"))
    y = tl.load(dense_ptr + token, mask=known, other=float("nan"))
    out_ptr += t
    total = tl.minimum(tl.sum(alpha, axis=0), 1.0, propagate_nan=ALL)
    tl.store(out_ptr, total)
    tl.store(out_ptr + stride_out, x * inverse - lse_s)
    tl.store(out_ptr + 2 * stride_out, y * inverse - lse_d)
    tl.store(out_ptr + 3 * stride_out, tl.sum(kl_sd, axis=0))
    tl.store(out_ptr + 4 * stride_out, tl.sum(kl_ds, axis=0))
    tl.store(out_ptr + 5 * stride_out, tl.sum(entropy, axis=0))


@triton.jit
def _scan(
    logits_ptr,  # [X, V] float32
    tops_ptr,  # [X, S] float32: the largest of each segment
    lse_ptr,  # [X] float32
    V,
    S,
    inverse,
    BLOCK: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    part = tl.arange(0, BLOCK // SEGMENT)
    m, s = tl.full([BLOCK], LOWEST, tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, V, BLOCK):
        x = tl.load(logits_ptr + row * V + start + at, start + at < V, other=-float("inf"))
        top = tl.max(tl.reshape(x, [BLOCK // SEGMENT, SEGMENT]), axis=1)
        where = start // SEGMENT + part
        tl.store(tops_ptr + row * S + where, top, where < S)
        m, s = _add_exp(m, s, x * inverse)
    tl.store(lse_ptr + row, _lse(m, s))


@triton.jit
def _tile(T, parts, BM: tl.constexpr, GROUP: tl.constexpr):
    """(tile of tokens, part of the vocabulary) of this program.

    GROUP tiles of tokens run together for one part after the other, so that their hidden states
    stay in L2 and a piece of the head is read once for all of them.
    """
    pid = tl.program_id(0)
    wide = tl.cdiv(T, BM)
    first = pid // (GROUP * parts) * GROUP
    size = tl.minimum(wide - first, GROUP)
    rest = pid % (GROUP * parts)
    return first + rest % size, (rest // size).to(tl.int64)


@triton.jit
def _make_lse(
    rows_ptr,  # [T, M]
    head_ptr,  # [V, M]
    part_ptr,  # [2, N, T]: maximum and sum
    T,
    V,
    M,
    inverse,
    parts,  # N
    plane,  # N * T
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
):
    i, n = _tile(T, parts, BM, GROUP)
    t = i * BM + tl.arange(0, BM)
    k = tl.arange(0, BK)
    in_t = (t < T)[:, None]
    a_ptr = rows_ptr + t.to(tl.int64)[:, None] * M + k[None, :]
    m, s = tl.full([BM], LOWEST, tl.float32), tl.zeros([BM], tl.float32)
    for j in range(SPAN):
        v = (n * SPAN + j) * BN + tl.arange(0, BN)
        in_v = (v < V)[None, :]
        x = tl.zeros([BM, BN], tl.float32)
        for start in range(0, M, BK):
            in_k = start + k < M
            a = tl.load(a_ptr + start, mask=in_t & in_k[None, :], other=0.0)
            b_ptr = head_ptr + v[None, :] * M + (start + k)[:, None]
            x = tl.dot(
                a, tl.load(b_ptr, mask=in_v & in_k[:, None], other=0.0), x, input_precision="ieee"
            )
        x = tl.where(in_v, x * inverse, -float("inf"))
        new = tl.maximum(m, tl.max(x, axis=1))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(x - new[:, None]), axis=1)
        m = new
    at = part_ptr + n * T + t
    tl.store(at, m, mask=t < T)
    tl.store(at + plane, s, mask=t < T)


@triton.jit
def _make_statistics(
    sparse_ptr,  # [T, M]
    dense_ptr,
    head_ptr,  # [V, M]
    tokens_ptr,  # [T] int64
    lse_sparse_ptr,  # [T] float32
    lse_dense_ptr,
    part_ptr,  # [6, N, T]; a sampled token's logarithms stand in the part that holds it
    T,
    V,
    M,
    inverse,
    parts,  # N
    plane,  # N * T
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPAN: tl.constexpr,
    GROUP: tl.constexpr,
):
    i, n = _tile(T, parts, BM, GROUP)
    t = i * BM + tl.arange(0, BM)
    in_t = t < T
    k = tl.arange(0, BK)
    rows = t.to(tl.int64)[:, None] * M + k[None, :]
    token = tl.load(tokens_ptr + t, mask=in_t, other=-1)
    lse_s = tl.load(lse_sparse_ptr + t, mask=in_t, other=0.0)
    lse_d = tl.load(lse_dense_ptr + t, mask=in_t, other=0.0)
    alpha = tl.zeros([BM], tl.float32)
    kl_sd, kl_ds, entropy, logp_s, logp_d = alpha, alpha, alpha, alpha, alpha
    for j in range(SPAN):
        v = (n * SPAN + j) * BN + tl.arange(0, BN)
        in_v = (v < V)[None, :]
        x, y = tl.zeros([BM, BN], tl.float32), tl.zeros([BM, BN], tl.float32)
        for start in range(0, M, BK):
            in_k = start + k < M
            in_a = in_t[:, None] & in_k[None, :]
            b_ptr = head_ptr + v[None, :] * M + (start + k)[:, None]
            b = tl.load(b_ptr, mask=in_v & in_k[:, None], other=0.0)
            a = tl.load(sparse_ptr + rows + start, mask=in_a, other=0.0)
            x = tl.dot(a, b, x, input_precision="ieee")
            a = tl.load(dense_ptr + rows + start, mask=in_a, other=0.0)
            y = tl.dot(a, b, y, input_precision="ieee")
        x = x * inverse - lse_s[:, None]
        y = y * inverse - lse_d[:, None]
        here = v[None, :] == token[:, None]
        logp_s += tl.sum(tl.where(here, x, 0.0), axis=1)
        logp_d += tl.sum(tl.where(here, y, 0.0), axis=1)
        least, sd, ds, own = _terms(
            tl.where(in_v, x, -float("inf")), tl.where(in_v, y, -float("inf"))
        )
        alpha += tl.sum(least, axis=1)
        kl_sd += tl.sum(sd, axis=1)
        kl_ds += tl.sum(ds, axis=1)
        entropy += tl.sum(own, axis=1)
    known = (token >= 0) & (token < V)
    logp_s = tl.where(known, logp_s, float("nan"))
    logp_d = tl.where(known, logp_d, float("nan"))
    at = part_ptr + n * T + t
    tl.store(at, alpha, mask=in_t)
    tl.store(at + plane, logp_s, mask=in_t)
    tl.store(at + 2 * plane, logp_d, mask=in_t)
    tl.store(at + 3 * plane, kl_sd, mask=in_t)
    tl.store(at + 4 * plane, kl_ds, mask=in_t)
    tl.store(at + 5 * plane, entropy, mask=in_t)


def statistics_of_logits(
    logits_2TV: Tensor,
    tokens_T: Tensor,
    inverse: float,
    lse_sparse_T: Tensor | None,
    lse_dense_T: Tensor | None,
    out_6T: Tensor,
    config: ReadConfig,
) -> None:
    """Fill out_6T, contiguous in T, from the sparse and the dense float32 logits."""
    T, V = logits_2TV.shape[1:]
    if not T:
        return
    nothing = out_6T
    _read[(T,)](
        logits_2TV[0],
        logits_2TV[1],
        tokens_T,
        nothing if lse_sparse_T is None else lse_sparse_T,
        nothing if lse_dense_T is None else lse_dense_T,
        out_6T,
        V,
        out_6T.stride(0),
        inverse,
        KNOW_SPARSE=lse_sparse_T is not None,
        KNOW_DENSE=lse_dense_T is not None,
        BLOCK=min(config.block, triton.next_power_of_2(V)),
        num_warps=config.warps,
    )


def scan_logits(logits_XV: Tensor, inverse: float, config: ReadConfig) -> tuple[Tensor, Tensor]:
    """The largest logit of each segment of the vocabulary, and log-sum-exp of logits * inverse.

    Returns:
        [X, S] for X rows and S segments, and [X].
    """
    X, V = logits_XV.shape
    segments = triton.cdiv(V, config.segment)
    tops_XS = torch.empty((X, segments), dtype=torch.float32, device=logits_XV.device)
    lse_X = torch.empty(X, dtype=torch.float32, device=logits_XV.device)
    _scan[(X,)](
        logits_XV, tops_XS, lse_X, V, segments, inverse,
        BLOCK=config.block, SEGMENT=config.segment, num_warps=config.warps,
    )  # fmt: skip
    return tops_XS, lse_X


def lse_of_hidden(rows_TM: Tensor, head_VM: Tensor, inverse: float, config: TileConfig) -> Tensor:
    """[T] log-sum-exp of logits * inverse, without storing logits."""
    T, M = rows_TM.shape
    V = len(head_VM)
    parts = triton.cdiv(V, config.bn * config.span)
    part_2NT = torch.empty((2, parts, T), dtype=torch.float32, device=rows_TM.device)
    if T:
        _make_lse[(triton.cdiv(T, config.bm) * parts,)](
            rows_TM, head_VM, part_2NT, T, V, M, inverse, parts, parts * T, **_options(config)
        )
    m_NT, s_NT = part_2NT
    top_T = m_NT.amax(dim=0)
    lse_T: Tensor = (s_NT * (m_NT - top_T).exp_()).sum(dim=0).log_().add_(top_T)
    return lse_T


def statistics_of_hidden(
    sparse_TM: Tensor,
    dense_TM: Tensor,
    head_VM: Tensor,
    tokens_T: Tensor,
    inverse: float,
    lse_sparse_T: Tensor,
    lse_dense_T: Tensor,
    config: TileConfig,
) -> Tensor:
    """[6, T] results, without storing logits."""
    T, M = sparse_TM.shape
    V = len(head_VM)
    parts = triton.cdiv(V, config.bn * config.span)
    part_6NT = torch.empty((RESULTS, parts, T), dtype=torch.float32, device=sparse_TM.device)
    if T:
        _make_statistics[(triton.cdiv(T, config.bm) * parts,)](
            sparse_TM,
            dense_TM,
            head_VM,
            tokens_T,
            lse_sparse_T,
            lse_dense_T,
            part_6NT,
            T,
            V,
            M,
            inverse,
            parts,
            parts * T,
            **_options(config),
        )
    out_6T = part_6NT.sum(dim=1)
    out_6T[0].clamp_(max=1.0)
    return out_6T


def _options(config: TileConfig) -> dict[str, int]:
    return {
        "BM": config.bm,
        "BN": config.bn,
        "BK": config.bk,
        "SPAN": config.span,
        "GROUP": config.group,
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
