"""Names and params of an MLflow run, from what was planned. Pure functions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from sparrow_lab.runs.plan import PlannedPoint

MAX_VALUE = 500
"""Longest value of a param; the whole config is the artifact point.json."""
MAX_KEY = 250

SHORT = {"page_size": "page"}
"""Label fields that a name writes shorter."""
FIRST = ("tau",)
"""Fields that lead a name: MLflow shows only its first 25 characters or so."""


class Names:
    """Names of a plan's tasks: `train tau=0.86 seed=0 tiny-s page=8`.

    The stage, then the label: first what differs between the points of the plan, then what
    does not. The model, and a schedule that is no level of tau (`dense`), stand alone.
    """

    def __init__(self, points: Iterable[PlannedPoint]) -> None:
        values: dict[str, set[str]] = {}
        for point in points:
            for key, value in point.label.items():
                values.setdefault(key, set()).add(text(value))
        self._differ = {key for key, found in values.items() if len(found) > 1}

    def __call__(self, point: PlannedPoint) -> str:
        """The name of one point; its id stands for an empty label."""
        keys = sorted(point.label, key=self._place)
        parts = [_part(key, point.label[key]) for key in keys] or [point.id]
        return " ".join([point.stage, *parts])

    def _place(self, key: str) -> tuple[bool, bool]:
        return key not in self._differ, key not in FIRST


def _part(key: str, value: Any) -> str:
    alone = key == "model" or (key == "tau" and isinstance(value, str))
    return text(value) if alone else f"{SHORT.get(key, key)}={text(value)}"


def params(point: PlannedPoint) -> dict[str, str]:
    """Flat params: the stage, the label's short names, then the config by dotted name.

    A label field that has the name of a config field (`seed`) appears once. Values over
    `MAX_VALUE` characters are cut and carry the length and hash of the whole.
    """
    flat = {"stage": point.stage}
    flat.update({str(k): text(v) for k, v in point.label.items()})
    flat.update(flatten(point.config))
    return {_key(k): short(v) for k, v in flat.items()}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """`{"a": {"b": 1}}` -> `{"a.b": "1"}`; lists and empty mappings are JSON text."""
    flat: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = text(value)
    return flat


def text(value: Any) -> str:
    """A value as it would stand in the experiment file: true, null, 1e-05, text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def short(value: str, limit: int = MAX_VALUE) -> str:
    """`value`, cut to `limit` characters with its length and hash when it is longer."""
    if len(value) <= limit:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:12]
    mark = f" ... [{len(value)} characters, sha256 {digest}]"
    return value[: limit - len(mark)] + mark


def _key(key: str) -> str:
    """A name that MLflow accepts; task params may have any key."""
    plain = re.sub(r"[^A-Za-z0-9_\-. :]", "_", key)
    return plain.strip(".")[:MAX_KEY] or "_"
