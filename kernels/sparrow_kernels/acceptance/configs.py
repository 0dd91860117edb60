"""Launch settings of fused acceptance by GPU; found once by timing, never during a run."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ReadConfig:
    """A pass over stored logits: numbers a step of a program; of a segment of the top-k search."""

    block: int = 2048
    warps: int = 8
    segment: int = 128


@dataclass(frozen=True)
class TileConfig:
    """A pass that makes its logits: tile of tokens, of vocabulary, of width; tiles of vocabulary a
    program; tiles of tokens that run together."""

    bm: int = 128
    bn: int = 128
    bk: int = 64
    span: int = 8
    group: int = 16
    warps: int = 8
    stages: int = 3


@dataclass(frozen=True)
class Config:
    """All settings.

    Attributes:
        bytes: of stored logits, sparse and dense together: tokens a chunk follow from it.
    """

    read: ReadConfig = ReadConfig()
    lse: TileConfig = TileConfig(bn=256, span=2)
    statistics: TileConfig = TileConfig(bk=32, stages=4)
    bytes: int = 640_000_000


DEFAULT = Config()

BY_GPU: dict[str, Config] = {"NVIDIA H200": DEFAULT}

INTERPRETER = Config(
    read=ReadConfig(32, 1, 8),
    lse=TileConfig(16, 16, 16, 2, 2, 1, 1),
    statistics=TileConfig(16, 16, 16, 2, 2, 1, 1),
    bytes=8 * 1024,
)
"""Small, so that the tests' small shapes span several programs and chunks."""


def config_for(device: torch.device) -> Config:
    """The settings of a device; of an unknown GPU the default."""
    if device.type != "cuda":
        return INTERPRETER
    return BY_GPU.get(torch.cuda.get_device_name(device), DEFAULT)
