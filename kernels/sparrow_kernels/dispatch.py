"""Which implementation of an op runs, and the launch settings that were found for its kernel.

Nothing here imports Triton: a machine without it runs the torch definitions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

Backend = Literal["torch", "triton"]

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""What the kernels take; float64 always goes to the definitions."""


def pick_backend(like: Tensor, backend: Backend | None) -> Backend:
    """The implementation for tensors like this one.

    Args:
        backend: None takes Triton for CUDA tensors of a dtype that the kernels know, else torch.
            `triton` on the CPU needs Triton's interpreter.

    Raises:
        ValueError: Triton was asked for where it cannot run.
    """
    if backend == "torch":
        return "torch"
    able = like.dtype in KERNEL_DTYPES and find_spec("triton") is not None
    if backend is None:
        return "triton" if like.is_cuda and able else "torch"
    if not able:
        found = f"dtype {like.dtype}" if find_spec("triton") else "no triton installed"
        raise ValueError(f"the triton backend takes bfloat16, float16 and float32: {found}")
    if not like.is_cuda and not interpreted():
        raise ValueError("the triton backend needs CUDA tensors, or TRITON_INTERPRET=1 on the CPU")
    return "triton"


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def wide_dots(dtype: torch.dtype) -> bool:
    """Whether operands of matrix products are cast to float32 first.

    float32 inputs ask for it; so does the interpreter, whose product of bfloat16 is wrong.
    """
    return dtype == torch.float32 or interpreted()


def checks_values(debug: bool | None) -> bool:
    """Whether page numbers are looked at, which waits for the GPU: an argument or SPARROW_DEBUG."""
    return os.environ.get("SPARROW_DEBUG") == "1" if debug is None else debug


@lru_cache(maxsize=64)
def settings(op: str, device: str) -> Mapping[str, Any]:
    """Launch settings of an op's kernel, from `<op>/configs.json`.

    They were found once, by measuring (`bench.tune`), and are never searched for in a run. A GPU
    names what differs from `default`.

    Args:
        device: the GPU's name as the driver gives it; an unknown one gets `default`.
    """
    path = Path(__file__).with_name(op) / "configs.json"
    known: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return {**known["default"], **known.get(device, {})}


@lru_cache(maxsize=8)
def device_name(device: torch.device) -> str:
    """The GPU's name; `interpreter` for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter"


def require(condition: bool, op: str, message: str) -> None:
    """Raise ValueError `<op>: <message>` unless the condition holds."""
    if not condition:
        raise ValueError(f"{op}: {message}")


@lru_cache(maxsize=8)
def early_launch(device: torch.device) -> bool:
    """Whether a kernel may start while the one before it ends (programmatic dependent launch).

    A kernel that is launched so waits before it reads or writes anything.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


_counters: dict[tuple[torch.device, int], Tensor] = {}
COUNTERS = 1 << 16


def arrival_counters(device: torch.device, rows: int) -> Tensor:
    """Zeros that a launch counts its finished programs in, and leaves as zeros.

    One buffer for each stream, so that launches of two streams do not count in each other's. What
    is made while a CUDA graph is captured belongs to the graph and is cleared at each replay.
    """
    if device.type != "cuda" or rows > COUNTERS or torch.cuda.is_current_stream_capturing():
        return torch.zeros(rows, dtype=torch.int32, device=device)
    key = (device, torch.cuda.current_stream(device).cuda_stream)
    if key not in _counters:
        _counters[key] = torch.zeros(COUNTERS, dtype=torch.int32, device=device)
    return _counters[key]
