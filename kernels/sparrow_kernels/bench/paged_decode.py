"""Paged decode, dense and sparse, beside torch's attention over contiguous keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

from sparrow_kernels.bench.inputs import (
    QWEN_1_7B,
    QWEN_4B,
    QWEN_14B,
    SMOLLM2,
    Cache,
    Heads,
    draw_pages,
    make_cache,
)
from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_kernels.bench.timing import median_ms
from sparrow_kernels.paged_decode import paged_decode

OP = "paged_decode"
DRAWS = 6
"""Choices that a timing goes through, each drawn from all pages of the cache."""

AIMS = {1024: 3.5, 2048: 4.0, 4096: 4.3, 8192: 4.4}
"""TB/s of selected keys and values that is aimed at, by budget, for Qwen3-1.7B's heads."""


def rows(device: str, quick: bool) -> Iterator[Row]:
    """Dense beside its peers, budgets, page sizes, group sizes, head dims."""
    batch, length = (2, 2048) if quick else (32, 32_768)
    budgets = [512] if quick else [1024, 2048, 4096, 8192]
    cache = make_cache(device, QWEN_1_7B, batch, length, 16)
    yield from dense_rows(cache, QWEN_1_7B)
    for budget in budgets:
        aim = None if quick else AIMS[budget]
        yield sparse_row(cache, QWEN_1_7B, budget, aim_tb_per_s=aim)
    del cache
    if quick:
        return
    for size in (4, 8, 32, 64, 128):
        cache = make_cache(device, QWEN_1_7B, batch, length, size)
        yield dense_row(cache, QWEN_1_7B)
        for budget in (1024, 4096):
            yield sparse_row(cache, QWEN_1_7B, budget)
        del cache
    for heads in (QWEN_4B, QWEN_14B, SMOLLM2):
        cache = make_cache(device, heads, batch, length, 16)
        yield dense_row(cache, heads)
        yield sparse_row(cache, heads, 2048)
        del cache
    for group in (1, 3, 6, 7, 8):
        heads = Heads("", 8 * group, 8, 128)
        cache = make_cache(device, heads, batch, 16_384, 16)
        yield sparse_row(cache, heads, 2048)
        del cache
    for dim in (64, 80, 96, 256):
        heads = Heads("", 16, 8, dim)
        cache = make_cache(device, heads, batch, 16_384, 16)
        yield sparse_row(cache, heads, 2048)
        del cache


def shape_of(cache: Cache, heads: Heads) -> str:
    length = int(cache.lengths_B[0])
    return f"batch {len(cache.lengths_B)}, {heads}, {length // 1024}k, page {cache.page_size}"


def dense_row(cache: Cache, heads: Heads, aim_ms: float | None = None) -> Row:
    """Every page."""
    counters = torch.zeros(cache.rows, dtype=torch.int32, device=cache.table_BP.device)

    def call() -> object:
        return paged_decode(
            cache.q_BKGD,
            cache.keys_NKSD,
            cache.values_NKSD,
            cache.table_BP,
            None,
            cache.lengths_B,
            cache.scale,
            counters_R=counters,
        )

    count = cache.kv_bytes(int(cache.lengths_B[0]))
    ms = median_ms([call, call])
    shape = shape_of(cache, heads)
    return Row(OP, shape, "dense", ms, count, 0, byte_floor(count), False, aim_ms, heads.model)


def sparse_row(cache: Cache, heads: Heads, budget: int, aim_tb_per_s: float | None = None) -> Row:
    """Pages drawn at random, other ones at each call."""
    keep = budget // cache.page_size
    numbers: dict[str, Any] = {"dtype": torch.int32, "device": cache.table_BP.device}
    counters = torch.zeros(cache.rows, **numbers)
    keep_B1 = torch.full((len(cache.lengths_B), 1), keep, **numbers)
    drawn = [draw_pages(cache, keep, seed) for seed in range(DRAWS)]

    def call(pages: Any) -> object:
        return paged_decode(
            cache.q_BKGD,
            cache.keys_NKSD,
            cache.values_NKSD,
            cache.table_BP,
            pages,
            cache.lengths_B,
            cache.scale,
            keep_BK=keep_B1,
            counters_R=counters,
        )

    count = cache.kv_bytes(budget)
    ms = median_ms([partial(call, pages) for pages in drawn])
    aim = None if aim_tb_per_s is None else count / aim_tb_per_s / 1e9
    shape, what = shape_of(cache, heads), f"sparse, budget {budget}"
    return Row(OP, shape, what, ms, count, 0, byte_floor(count), False, aim, heads.model)


def dense_rows(cache: Cache, heads: Heads) -> Iterator[Row]:
    """Ours beside SDPA's flash and cuDNN kernels and FlexAttention, on the same bytes.

    The aim is cuDNN's time. flashinfer's paged decode, the paper's backend, is no dependency of
    ours and is timed only where it is installed.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    B, K, G, D = cache.q_BKGD.shape
    length = int(cache.lengths_B[0])
    # contiguous copies of as many bytes: a peer must not profit from a smaller cache
    keys = torch.randn((B, K, length, D), device="cuda", dtype=torch.bfloat16)
    values = torch.randn_like(keys)
    q = cache.q_BKGD.reshape(B, K * G, 1, D)
    count = cache.kv_bytes(length)
    shape = f"batch {B}, {heads}, {length // 1024}k"

    def peer(name: str, ms: float, note: str = "contiguous") -> Row:
        return Row(OP, shape, name, ms, count, 0, byte_floor(count), peer=True, note=note)

    times = {}
    for name, backend in (
        ("SDPA flash", SDPBackend.FLASH_ATTENTION),
        ("SDPA cuDNN", SDPBackend.CUDNN_ATTENTION),
    ):
        with sdpa_kernel(backend):

            def attend() -> object:
                return F.scaled_dot_product_attention(q, keys, values, enable_gqa=G > 1)

            times[name] = median_ms([attend, attend])
        yield peer(name, times[name])
    from torch.nn.attention.flex_attention import flex_attention

    flex: Any = torch.compile(flex_attention)
    run = partial(flex, q, keys, values, enable_gqa=G > 1)
    yield peer("FlexAttention, compiled", median_ms([run, run]))
    yield from flashinfer_rows(cache, peer)
    yield dense_row(cache, heads, aim_ms=times["SDPA cuDNN"])


def flashinfer_rows(cache: Cache, peer: Any) -> Iterator[Row]:
    """The paper's backend over the same pages, where it is installed."""
    if find_spec("flashinfer") is None:
        return
    flashinfer: Any = import_module("flashinfer")
    B, K, G, D = cache.q_BKGD.shape
    P = cache.table_BP.shape[1]
    space = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "HND")
    starts = torch.arange(B + 1, dtype=torch.int32, device="cuda") * P
    last = torch.full((B,), cache.page_size, dtype=torch.int32, device="cuda")
    numbers = cache.table_BP.flatten()
    kind = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    wrapper.plan(starts, numbers, last, K * G, K, D, cache.page_size, **kind)
    q = cache.q_BKGD.reshape(B, K * G, D)
    run = partial(wrapper.run, q, (cache.keys_NKSD, cache.values_NKSD))
    yield peer("flashinfer, paged", median_ms([run, run]), "the same pages")
