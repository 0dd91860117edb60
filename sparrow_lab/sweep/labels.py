"""Short names of a point's swept fields, for people and for `--where`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.config.schema import Stage
from sparrow_lab.sweep.canonical import Config, form, ignored

Keys = tuple[str, ...]

_FIXED: dict[Keys, str] = {
    ("model", "name"): "model",
    ("sparsity", "page_size"): "page_size",
    ("sparsity", "schedule"): "tau",
    ("seed",): "seed",
}
"""Always in a label, where the stage knows them."""


class Labels:
    """Makes the labels of one sweep; names are settled once, for all its points."""

    def __init__(self, swept: Sequence[Keys]) -> None:
        self.names = dict(_FIXED)
        others = [keys for keys in dict.fromkeys(swept) if keys not in _FIXED]
        short = [_short(keys) for keys in others]
        clashes = Counter([*short, *_FIXED.values()])
        for keys, name in zip(others, short, strict=True):
            self.names[keys] = name if clashes[name] == 1 else "_".join(keys)

    def of(self, config: Config, stage: Stage) -> dict[str, Any]:
        """Return the label of a stage's canonical config: what the stage reads, flat."""
        left_out = [tuple(path.split(".")) for path in ignored(config, stage)]
        label: dict[str, Any] = {}
        for keys, name in self.names.items():
            if any(keys[: len(out)] == out for out in left_out):
                continue
            label[name] = _value(keys, config)
        return label


def schedule_name(config: Config) -> float | str:
    """Name a schedule: tau as a number, `dense`, `budget=64`, `file=name` or the preset."""
    schedule = config["sparsity"]["schedule"]
    match form(config):
        case "tau":
            return float(schedule["tau"])
        case "budget":
            return f"budget={schedule['budget']}"
        case "file":
            return f"file={Path(schedule['file']).stem}"
        case "preset":
            return str(schedule["preset"])
    return "dense"


def _short(keys: Keys) -> str:
    return keys[0] if keys[-1] == "name" else keys[-1]


def _value(keys: Keys, config: Config) -> Any:
    if keys == ("sparsity", "schedule"):
        return schedule_name(config)
    value: Any = config
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    if keys == ("model", "name") and config["model"]["fingerprint"] is not None:
        return Path(value).name
    flat = value is None or isinstance(value, (str, int, float))
    return value if flat else json.dumps(value, sort_keys=True, separators=(",", ":"))
