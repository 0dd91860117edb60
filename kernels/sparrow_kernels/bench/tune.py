"""Find launch settings: time candidates on the shapes of the bench, print all, best first.

    python -m sparrow_kernels.bench.tune paged_decode

Run once for a new GPU; what wins is written by hand into `<op>/configs.json` under the GPU's name,
so that a run never searches. Settings of the decode kernel change how a row is cut, and with that
the last bits of its results.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch

from sparrow_kernels.bench.inputs import QWEN_1_7B, Cache, Heads, draw_pages, make_cache
from sparrow_kernels.bench.page_choice import Choice
from sparrow_kernels.bench.timing import median_ms

Tile = dict[str, Any]

DECODE_TILES: list[Tile] = [
    {"block": block, "warps": warps, "stages": stages}
    for block, warps, stages in [
        *itertools.product([64], [2, 4, 8], [3, 4]),
        *itertools.product([128], [4, 8], [2, 3, 4]),
        (256, 8, 2),
    ]
]
MANY_ROWS: list[Tile] = [
    {"slots": 264, "least": 256, "whole": whole, "unit": unit, "early": True}
    for whole, unit in [(1 << 20, 4096), (12_288, 8192), (12_288, 4096), (12_288, 2048)]
]
FEW_ROWS: list[Tile] = [
    {"slots": slots, "least": 256, "whole": 12_288, "unit": 2048, "early": True}
    for slots in (132, 264, 396)
]
"""How rows are cut into chunks, where they fill the GPU by themselves and where they do not."""

CHOICE_TILES: list[Tile] = [
    {"tile": tile, "warps": warps, "stages": stages}
    for tile, warps, stages in [
        *itertools.product([64, 128], [4], [2, 3, 4]),
        (128, 8, 3),
        (256, 8, 2),
    ]
]
SPANS = (128, 256, 512, 1024, 2048)


def decode_ms(cache: Cache, tile: Tile, budget: int | None) -> float:
    """One candidate on one budget; None is dense."""
    from sparrow_kernels.paged_decode.triton import launch

    B, K = cache.q_BKGD.shape[:2]
    counters = torch.zeros(B * K, dtype=torch.int32, device="cuda")
    pool = (cache.q_BKGD, cache.keys_NKSD, cache.values_NKSD, cache.table_BP)
    more = (cache.lengths_B, cache.scale, counters, tile)
    if budget is None:
        return median_ms([partial(launch, *pool, None, None, *more)] * 2, repeats=5)
    keep = torch.full((B, 1), budget // cache.page_size, dtype=torch.int32, device="cuda")
    drawn = [draw_pages(cache, budget // cache.page_size, seed) for seed in range(4)]
    calls = [partial(launch, *pool, pages, keep, *more) for pages in drawn]
    return median_ms(calls, repeats=5)


def compile_decode(job: tuple[Heads, int, Tile]) -> None:
    """Leave both kernels of a candidate in Triton's cache."""
    heads, size, tile = job
    cache = make_cache("cuda", heads, 2, 32 * size, size)
    for budget in (None, 16 * size):
        try:
            decode_ms(cache, {**MANY_ROWS[0], **tile}, budget)
        except Exception as error:  # too much shared memory: reported when it is timed
            print("cannot run", tile, type(error).__name__, flush=True)


def compile_choice(job: tuple[int, Tile]) -> None:
    """The same for a candidate of page choice; a program's ranks depend on the pages there are."""
    size, tile = job
    choice = Choice("cuda", QWEN_1_7B, 1, 32_768, size, layers=1)
    choice.ms(tile=tile)


def parallel(function: Any, jobs: list[Any]) -> None:
    """Compile in several processes: Triton's cache on disk hands the results over."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=min(12, len(jobs)), mp_context=context) as pool:
        list(pool.map(function, jobs))


def decode_tiles(
    heads: Heads, batch: int, length: int, size: int, cuts: list[Tile], budgets: list[int]
) -> Iterator[Tile]:
    """Terabytes a second of every tile and cut, dense and at each budget."""
    cache = make_cache("cuda", heads, batch, length, size)
    for tile, cut in itertools.product(DECODE_TILES, cuts):
        found: Tile = {**tile, **cut}
        try:
            for budget in [*budgets, None]:
                ms = decode_ms(cache, {**tile, **cut}, budget)
                tokens = length if budget is None else budget
                found[f"tb_{budget or 'dense'}"] = round(cache.kv_bytes(tokens) / ms / 1e9, 3)
        except Exception as error:  # out of resources: the next candidate
            print("cannot run", found, type(error).__name__, flush=True)
            continue
        yield found


def choice_tiles(size: int, batch: int) -> Iterator[Tile]:
    """Microseconds of every tile and span."""
    choice = Choice("cuda", QWEN_1_7B, batch, 32_768, size)
    for tile, span in itertools.product(CHOICE_TILES, SPANS):
        us = 1e3 * choice.ms(tile={**tile, "by_marks": [{"marks": 0, "span": span, "early": True}]})
        yield {"page_size": size, "batch": batch, **tile, "span": span, "us": round(us, 2)}


def main(op: str) -> None:
    """Print one JSON line a candidate, the best ones last."""
    if op == "paged_decode":
        parallel(compile_decode, [(QWEN_1_7B, 16, tile) for tile in DECODE_TILES])
        for batch, cuts, budgets in (
            (32, MANY_ROWS, [1024, 2048, 4096, 8192]),
            (16, FEW_ROWS, [1024]),
        ):
            rows = list(decode_tiles(QWEN_1_7B, batch, 32_768, 16, cuts, budgets))
            rows.sort(key=lambda row: sum(v for k, v in row.items() if k.startswith("tb_")))
            for row in rows:
                print(json.dumps({"batch": batch, **row}), flush=True)
    elif op == "page_choice":
        parallel(compile_choice, list(itertools.product((16, 4), CHOICE_TILES)))
        for size, batch in ((16, 32), (16, 16), (4, 32)):
            for row in sorted(choice_tiles(size, batch), key=lambda row: -float(row["us"])):
                print(json.dumps(row), flush=True)
    else:
        sys.exit(f"error: no settings to find for '{op}'; allowed: paged_decode, page_choice")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
