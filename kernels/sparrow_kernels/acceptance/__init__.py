"""Acceptance of sparse against dense next-token distributions."""

from sparrow_kernels.acceptance.naive import (
    TokenStatistics,
    acceptance_from_hidden,
    acceptance_from_logits,
    top_k_acceptance,
)

__all__ = [
    "TokenStatistics",
    "acceptance_from_hidden",
    "acceptance_from_logits",
    "top_k_acceptance",
]
