"""Choosing points by what people see: an id's beginning, a label, `key=value`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sparrow_lab.errors import UserError, nearest
from sparrow_lab.runs.plan import PlannedPoint

Where = dict[str, str]
"""Label keys and values as typed; `stage` and `id` are keys too."""


def parse_where(options: Iterable[str]) -> Where:
    """Read `k=v` options; one option may hold several, with commas between them.

    A schedule may be given as labels show it: `dense` and `budget=64` mean the key `tau`.
    Raises UserError for a part without `=` and for a key that is given two values.
    """
    where: Where = {}
    for option in options:
        for part in option.split(","):
            part = part.strip()
            named = part == "dense" or part.startswith(("budget=", "file="))
            key, equals, value = ("tau", "=", part) if named else _split(part)
            if not equals or not key or not value:
                raise UserError(f"'{part}' is not key=value", "--where")
            if where.setdefault(key, value) != value:
                raise UserError(f"'{key}' is both {where[key]} and {value}", "--where")
    return where


def matching(points: Iterable[PlannedPoint], where: Where) -> list[PlannedPoint]:
    """The points whose label agrees with every key; all of them for an empty `where`.

    A point without the key does not match. Raises UserError for a key that no label
    has, and when nothing matches.
    """
    points = list(points)
    keys = {"stage", "id"} | {key for p in points for key in p.label}
    for key in where:
        if key not in keys:
            allowed = ", ".join(sorted(keys))
            raise UserError(f"no point has '{key}'{nearest(key, keys)}; there are {allowed}", key)
    found = [p for p in points if all(_agrees(p, k, v) for k, v in where.items())]
    if where and not found:
        text = ",".join(f"{k}={v}" for k, v in where.items())
        raise UserError(f"no point has {text}", "--where")
    return found


def find_points(points: Iterable[PlannedPoint], text: str) -> list[PlannedPoint]:
    """Points by id prefix (at least 3 characters) or by label; empty when there is none."""
    points = list(points)
    if "=" in text or text == "dense":
        try:
            return matching(points, parse_where([text]))
        except UserError:
            return []
    return [p for p in points if len(text) >= 3 and p.id.startswith(text.lower())]


def short_names(points: Iterable[PlannedPoint]) -> dict[str, str]:
    """Each point's label by id, without the keys that are the same for all points.

    A label that would have nothing left is shown whole.
    """
    points = list(points)
    values: dict[str, set[str]] = {}
    for point in points:
        for key, value in point.label.items():
            values.setdefault(key, set()).add(str(value))
    telling = {key for key, found in values.items() if len(found) > 1}
    return {
        p.id: replace(p, label=kept).short()
        if (kept := {k: v for k, v in p.label.items() if k in telling})
        else p.short()
        for p in points
    }


def _split(part: str) -> tuple[str, str, str]:
    key, equals, value = part.partition("=")
    return key.strip(), equals, value.strip()


def _agrees(point: PlannedPoint, key: str, typed: str) -> bool:
    """Whether a label's value is what was typed: as a number where both are, else as text."""
    have: Any = {"stage": point.stage, "id": point.id, **point.label}.get(key)
    if have is None and key not in point.label:
        return False
    if isinstance(have, (int, float)) and not isinstance(have, bool):
        try:
            return float(typed) == float(have)
        except ValueError:
            return False
    return str(have).lower() == typed.lower()
