"""Paged decode: attention of one new token over chosen pages of the KV cache."""

from sparrow_kernels.paged_decode.naive import paged_decode

__all__ = ["paged_decode"]
