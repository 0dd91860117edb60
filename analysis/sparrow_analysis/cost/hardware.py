"""Hardware profiles: what the cost model needs to know of a machine, kept in `hardware.json`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparrow_analysis.cost.files import read_object
from sparrow_lab.errors import UserError, nearest

DEFAULT_HARDWARE = "h200"


@dataclass(frozen=True)
class Hardware:
    """One accelerator (or one CPU worker).

    Attributes:
        flops: peak FLOP/s of dense matrix products in the model's precision.
        bandwidth: peak bytes/s of memory.
        memory: bytes.
        flops_share, bandwidth_share: share of each peak that real kernels attain.
        layer_overhead: seconds that a decode step spends on each layer beyond the roofline:
            launches, page choice, small kernels.
        rough: True where the numbers say no more than an order of magnitude.
        source: where they come from.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    flops_share: float
    bandwidth_share: float
    layer_overhead: float
    rough: bool
    source: str

    @property
    def intensity(self) -> float:
        """FLOP a byte at which compute and memory balance, from the two peaks: eFLOPs' `I`."""
        return self.flops / self.bandwidth


def hardware_names() -> list[str]:
    """Profiles that ship with the package."""
    return list(_profiles())


def load_hardware(name: str) -> Hardware:
    """A profile by name, or from a JSON file that holds one object with the same keys.

    Raises:
        UserError: no such profile or file; a key is missing, unknown or no positive number.
    """
    profiles = _profiles()
    if name in profiles:
        return _read(name, profiles[name], name)
    if not name.endswith(".json"):
        hint = nearest(name, profiles) or f"; the profiles are {', '.join(profiles)}"
        raise UserError(f"no hardware profile is called '{name}'{hint}", "hardware")
    data = read_object(Path(name), "a hardware profile")
    return _read(Path(name).stem, data, name)


def _read(name: str, data: dict[str, Any], where: str) -> Hardware:
    keys = {f.name for f in fields(Hardware)} - {"name"}
    for key in sorted(data.keys() - keys):
        raise UserError(f"unknown key '{key}'{nearest(key, keys)}", where)
    for key in sorted(keys - data.keys()):
        raise UserError(f"the key '{key}' is missing", where)
    for key in sorted(keys - {"rough", "source"}):
        value = data[key]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if (
            not number
            or not math.isfinite(value)
            or value < 0
            or (value == 0 and key != "layer_overhead")
        ):
            raise UserError(f"{key} must be a positive number, found {value!r}", where)
    if not isinstance(data["rough"], bool):
        raise UserError(f"rough must be true or false, found {data['rough']!r}", where)
    return Hardware(name=name, **data)


@cache
def _profiles() -> dict[str, Any]:
    text = files(__package__).joinpath("hardware.json").read_text(encoding="utf-8")
    profiles: dict[str, Any] = json.loads(text)
    return profiles
