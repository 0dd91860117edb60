"""Where kernel tests run: Triton's interpreter on a CPU, and a GPU under `-m gpu`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(not INTERPRETED, reason="Triton's interpreter is off on a GPU"),
    ),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def dtypes_of(device: str) -> list[torch.dtype]:
    """What kernels are tested with: the interpreter's products are right in float32 only."""
    return [torch.float32] if device == "cpu" else [torch.float32, torch.bfloat16]


@contextmanager
def poisoned() -> Iterator[None]:
    """Memory from `torch.empty` holds NaN, so that what a kernel leaves out is seen."""
    empty = torch.empty

    def filled(*args: Any, **kwargs: Any) -> Tensor:
        made = empty(*args, **kwargs)
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(-(2**30))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", filled)
        yield
