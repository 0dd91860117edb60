"""One line of the kernel bench: what was timed, and how far it is from the least it could take."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

BYTES_PER_S = 4.3e12
"""What one H200 moves: its copy rate, reading plus writing. Byte floors are taken at this rate."""

FLOPS_PER_S = 694e12
"""bf16 products of 8192 x 8192 x 8192 on the same GPU. FLOP floors are taken at this rate."""


def byte_floor(count: int) -> float:
    """Milliseconds to move `count` bytes."""
    return count / BYTES_PER_S * 1e3


def flop_floor(count: int) -> float:
    """Milliseconds for `count` floating-point operations in bf16 matrix products."""
    return count / FLOPS_PER_S * 1e3


@dataclass(frozen=True)
class Row:
    """One way to run one op on one shape.

    Args:
        op: the op, as its folder is called.
        shape: sizes, for a reader: `batch 32, 16/8 heads, dim 128, 32k`.
        variant: ours or the peer's name, and the setting that this row varies.
        ms: median milliseconds of a call.
        bytes, flops: the least that the method must move and compute; 0 where it does not matter.
        floor_ms: the larger of the two floors.
        peer: measured for comparison, not our own.
        aim_ms: the most that is aimed at; None where nothing is.
        note: what a reader must know to read the number.
    """

    op: str
    shape: str
    variant: str
    ms: float
    bytes: int
    flops: int
    floor_ms: float
    peer: bool = False
    aim_ms: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float:
        """Measured over floor: 1 is as fast as can be."""
        return self.ms / self.floor_ms

    @property
    def tb_per_s(self) -> float:
        """Terabytes a second of the bytes that the method must move."""
        return self.bytes / self.ms / 1e9

    @property
    def reached(self) -> bool | None:
        """Whether the aim was reached; None without an aim."""
        return None if self.aim_ms is None else self.ms <= self.aim_ms


def write_csv(rows: Iterable[Row], path: Path) -> None:
    """Write rows with their derived columns; an existing file is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {**asdict(row), "ratio": row.ratio, "tb_per_s": row.tb_per_s, "reached": row.reached}
        for row in rows
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, lines[0].keys() if lines else ["op"])
        writer.writeheader()
        writer.writerows(lines)
