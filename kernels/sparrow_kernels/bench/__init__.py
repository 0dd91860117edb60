"""The kernel bench: every op beside its peers, in one run on one GPU.

A module of this package times one op: `rows(device, quick)` yields its lines, `quick` those of one
small shape. Nothing here is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from sparrow_kernels.bench.row import Row, write_csv

__all__ = ["MODULES", "Row", "gather", "write_csv"]

MODULES: tuple[str, ...] = (
    "landmarks",
    "page_choice",
    "paged_decode",
    "step",
    "acceptance",
    "sparse_attention",
)
"""What is timed, in the order of the table."""


def gather(device: str, quick: bool, only: str | None = None) -> Iterator[Row]:
    """Time the ops one after the other; `only` is one of `MODULES`."""
    for name in MODULES:
        if only in (None, name):
            yield from import_module(f"{__name__}.{name}").rows(device, quick)
