"""The `sweep:` section, read and checked: axes whose every value is known to fit.

An axis is a list of choices; a choice sets one or more fields. A zip bundle is one
axis whose choices set several fields together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparrow_lab.config.fields import FieldPath, check, flatten
from sparrow_lab.config.nodes import Node
from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.errors import UserError


class Setting(NamedTuple):
    """A checked value in JSON types, and where it was written."""

    value: Any
    where: str


Choice = dict[FieldPath, Setting]
"""What one value of an axis sets; also one entry of `include` or `exclude`."""


@dataclass(frozen=True)
class Axis:
    """Choices of which every combination with the other axes is a point."""

    name: str
    choices: list[Choice]
    where: str

    def fields(self) -> set[tuple[str, ...]]:
        """Return the places in a point that any choice sets."""
        return {field.keys for choice in self.choices for field in choice}


@dataclass(frozen=True)
class Grid:
    """Axes and zip bundles, what to leave out, and what to add."""

    axes: list[Axis]
    exclude: list[tuple[Choice, str]]
    include: list[tuple[Choice, str]]


def read_grid(config: SweepConfig) -> Grid:
    """Check the `sweep:` section of a config and return it; UserError with the place.

    Refused: fields that do not exist, values that a field does not take, empty axes,
    a value given twice, bundles of unequal lengths, two axes that set the same field.
    """
    root = config._source.root
    if root is None:
        root = as_node(config.model_dump(mode="json", include={"sweep"}), "")
    grid = root.value.get("sweep")
    sections = grid.value if grid is not None else {}
    axes = [_axis(path, node) for path, node in _items(sections.get("axes"))]
    axes += [_bundle(node, i) for i, node in enumerate(_elements(sections.get("zip")))]
    _refuse_overlaps(axes)
    exclude = [(_choice(node), node.where) for node in _elements(sections.get("exclude"))]
    for choice, where in exclude:
        if not choice:
            raise UserError("an empty entry would exclude every point", where)
    include = [(_choice(node), node.where) for node in _elements(sections.get("include"))]
    return Grid(axes, exclude, include)


def as_node(value: Any, where: str) -> Node:
    """Wrap plain values as nodes whose places are their dotted paths."""
    inner = f"{where}." if where else ""
    if isinstance(value, dict):
        return Node({k: as_node(v, f"{inner}{k}") for k, v in value.items()}, where)
    if isinstance(value, (list, tuple)):
        return Node([as_node(v, f"{where}[{i}]") for i, v in enumerate(value)], where)
    return Node(value, where)


def overlap(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    """Tell whether two places are the same or one holds the other."""
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter]


def _axis(path: str, node: Node) -> Axis:
    where = node.key_where or node.where
    if not node.value:
        raise UserError(f"the axis '{path}' has no values", where)
    choices = [_settings(path, value, where) for value in node.value]
    _refuse_duplicates(f"the axis '{path}'", choices, [v.where for v in node.value])
    return Axis(path, choices, where)


def _bundle(node: Node, index: int) -> Axis:
    lists = node.value
    name = ", ".join(lists)
    if not lists:
        raise UserError(f"sweep.zip[{index}] is empty; give at least one axis", node.where)
    lengths = {path: len(values.value) for path, values in lists.items()}
    if len(set(lengths.values())) > 1:
        text = ", ".join(f"'{path}' has {length}" for path, length in lengths.items())
        raise UserError(f"axes in a zip need equally many values: {text}", node.where)
    if 0 in lengths.values():
        raise UserError(f"the axes '{name}' have no values", node.where)
    columns = [_axis_values(path, values) for path, values in lists.items()]
    choices: list[Choice] = [
        {field: setting for cell in row for field, setting in cell.items()}
        for row in zip(*columns, strict=True)
    ]
    for i, one in enumerate(columns):
        for other in columns[:i]:
            _refuse_shared(_fields(one), _fields(other), node.where)
    _refuse_duplicates(
        f"the axes '{name}'", choices, [v.where for v in next(iter(lists.values())).value]
    )
    return Axis(name, choices, node.where)


def _axis_values(path: str, values: Node) -> list[Choice]:
    return [_settings(path, value, values.key_where or values.where) for value in values.value]


def _settings(path: str, value: Node, where: str) -> Choice:
    return {
        field: Setting(check(field, node), node.where)
        for field, node in flatten(path, value, where).items()
    }


def _choice(node: Node) -> Choice:
    choice: Choice = {}
    for path, value in node.value.items():
        where = value.key_where or value.where
        settings = _settings(path, value, where)
        for field in settings:
            _refuse_shared({field.keys}, {f.keys for f in choice}, where)
        choice.update(settings)
    return choice


def _fields(choices: Iterable[Choice]) -> set[tuple[str, ...]]:
    return {field.keys for choice in choices for field in choice}


def _refuse_duplicates(name: str, choices: list[Choice], places: list[str]) -> None:
    seen: dict[str, str] = {}
    for choice, where in zip(choices, places, strict=True):
        key = json.dumps({".".join(f.keys): s.value for f, s in choice.items()}, sort_keys=True)
        if key in seen:
            values = ", ".join(_short(s.value) for s in choice.values())
            raise UserError(f"{name} has {values} twice; first at {seen[key]}", where)
        seen[key] = where


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _refuse_overlaps(axes: list[Axis]) -> None:
    for i, axis in enumerate(axes):
        for other in axes[:i]:
            _refuse_shared(axis.fields(), other.fields(), axis.where)


def _refuse_shared(one: set[tuple[str, ...]], other: set[tuple[str, ...]], where: str) -> None:
    for a in sorted(one):
        for b in sorted(other):
            if overlap(a, b):
                longer = a if len(a) > len(b) else b
                raise UserError(f"the field '{'.'.join(longer)}' is set twice here", where)


def _items(node: Node | None) -> list[tuple[str, Node]]:
    return list(node.value.items()) if node is not None else []


def _elements(node: Node | None) -> list[Node]:
    return list(node.value) if node is not None else []
