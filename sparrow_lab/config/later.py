"""Science fields that came after the first release, and hashes that do not notice them.

A hash over a config stands for finished work: ids of points, keys of runs that are one run. At its
default such a field is left out of it, so that an upgrade leaves the hash as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LATER: dict[str, Any] = {
    # in the hash once it is not the CPU: a GPU rounds sums otherwise, and so draws other tokens
    "model.device": "cpu",
}
"""Dotted path and default. Write a new field here in the commit that adds it to the schema."""

_ANYTHING = object()


def without_later(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config, or some sections of one, without later fields at their defaults."""
    left = dict(config)
    for path, default in LATER.items():
        left = without(left, path.split("."), default)
    return left


def without(mapping: dict[str, Any], keys: list[str], only_if: Any = _ANYTHING) -> dict[str, Any]:
    """Return a copy without one nested key, if it is there (and has the value `only_if`)."""
    key, *rest = keys
    if key not in mapping:
        return mapping
    if rest:
        return {**mapping, key: without(mapping[key], rest, only_if)}
    if only_if is not _ANYTHING and mapping[key] != only_if:
        return mapping
    return {k: v for k, v in mapping.items() if k != key}
