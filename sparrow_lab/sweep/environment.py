"""The variables that a worker process starts with."""

from __future__ import annotations

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)


def worker_environment(threads: int) -> dict[str, str]:
    """Hold every numeric library to the threads that the point's id names."""
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), "TOKENIZERS_PARALLELISM": "false"}
