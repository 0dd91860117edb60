"""Paged decode: attention of one new token over chosen pages of the KV cache."""

from sparrow_kernels.paged_decode.cpu import (
    SharedRows,
    page_decode,
    row_decode,
    shared_row_decode,
)
from sparrow_kernels.paged_decode.naive import paged_decode

__all__ = ["SharedRows", "page_decode", "paged_decode", "row_decode", "shared_row_decode"]
