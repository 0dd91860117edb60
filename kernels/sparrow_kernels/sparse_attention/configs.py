"""Launch settings of sparse training attention by GPU; found once by timing, never during a run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class TileConfig:
    """One kernel: tokens of a tile of queries and of a tile of keys."""

    queries: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Config:
    """The three kernels: outputs, gradients of keys and values, gradients of queries."""

    forward: TileConfig = TileConfig(128, 128, 8, 3)
    of_keys: TileConfig = TileConfig(64, 128, 8, 3)
    of_queries: TileConfig = TileConfig(128, 64, 8, 3)


NARROW = Config(TileConfig(64, 64, 4, 3), TileConfig(32, 128, 4, 3), TileConfig(64, 64, 4, 3))
"""For head dims up to 64."""

DEFAULT = (NARROW, Config())

BY_GPU: dict[str, tuple[Config, Config]] = {"NVIDIA H200": DEFAULT}
"""For narrow heads, and for head dims up to 128."""

SMALL = TileConfig(32, 32, 4, 1)
"""For float32, and for head dims above 128: tiles that fit in shared memory and registers."""

INTERPRETER = TileConfig(32, 32, 1, 1)
"""Small, so that the tests' short sequences span several tiles."""


def config_for(device: torch.device, dtype: torch.dtype, head_dim: int) -> Config:
    """The settings of a device; of an unknown GPU the default."""
    if device.type != "cuda":
        return Config(INTERPRETER, INTERPRETER, INTERPRETER)
    if dtype == torch.float32 or head_dim > 128:
        return Config(SMALL, SMALL, SMALL)
    narrow, wide = BY_GPU.get(torch.cuda.get_device_name(device), DEFAULT)
    return narrow if head_dim <= 64 else wide


def within_a_word(config: TileConfig, page_size: int) -> TileConfig:
    """The keys of a tile must be of pages that share one word of bits."""
    return replace(config, keys=min(config.keys, 32 * page_size))
