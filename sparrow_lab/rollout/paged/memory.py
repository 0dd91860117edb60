"""How many pages the KV cache gets, decided before anything runs."""

from __future__ import annotations

import re

import torch

from sparrow_lab.errors import UserError
from sparrow_lab.rollout.paged.store import Layout

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}

WORKSPACE = 3 * 2**30
"""Bytes of a GPU left for activations, sampling and graphs when a fraction of it is asked for."""


def parse_memory(text: str) -> int | float:
    """Bytes (`20GB`, `512MiB`, `1000000`) as int, or a fraction of the GPU (`0.85`) as float.

    Raises:
        UserError: neither.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if found is None or found[2] not in _UNITS:
        raise UserError(
            f"'{text}' is neither bytes (20GB, 512MiB) nor a fraction of the GPU (0.85)", "memory"
        )
    number, unit = float(found[1]), found[2]
    if not unit and number < 1 and number > 0:
        return number
    return int(number * _UNITS[unit])


def pages_for(memory: int | float, layout: Layout, device: torch.device) -> int:
    """Pages that fit.

    Args:
        memory: bytes of the KV cache (int), or a fraction of the GPU's memory (float) that the
            whole process may fill, weights and workspace included.

    Raises:
        UserError: a fraction without a GPU or outside 0 to 1, or not one page fits; with the
            numbers.
    """
    given = f"{memory:,} bytes"
    room = int(memory)
    if isinstance(memory, float):
        if device.type != "cuda":
            raise UserError("a fraction needs a GPU; state bytes, such as 8GB", "memory")
        if not 0 < memory < 1:
            raise UserError(f"a fraction lies between 0 and 1, found {memory}", "memory")
        free, total = torch.cuda.mem_get_info(device)
        # what torch holds and does not use is ours too
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        used = total - free - idle
        room = int(memory * total) - used - WORKSPACE
        gib = 2**30
        given = (
            f"{memory:g} of {total / gib:.1f} GiB, of which {used / gib:.1f} GiB are taken and "
            f"{WORKSPACE / gib:.0f} GiB are workspace,"
        )
    pages = room // layout.page_bytes
    if pages < 1:
        raise UserError(f"{given} hold no page of {layout.page_bytes:,} bytes", "memory")
    return pages
