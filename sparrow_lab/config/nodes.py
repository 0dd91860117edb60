"""Values that remember where they were written.

A `Node` is a scalar, a list of nodes or a mapping of nodes, with the place of its
value and of its key. Errors found long after parsing still name the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PathKey = str | int


@dataclass(slots=True)
class Node:
    """One value of a file or of an option.

    `value` is a scalar, `list[Node]` or `dict[str, Node]`; `where` is
    `file:line:column` or `--set a.b=c`; `key_where` is the place of its key, if any.
    """

    value: Any
    where: str
    key_where: str | None = None

    def plain(self) -> Any:
        """Return the value without places: scalars, lists and dicts."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, key: PathKey) -> Node | None:
        """Return one element, or None where there is none."""
        if isinstance(self.value, dict):
            return self.value.get(str(key))
        if isinstance(self.value, list) and isinstance(key, int) and key < len(self.value):
            found: Node = self.value[key]
            return found
        return None

    def nearest(self, path: Sequence[PathKey]) -> tuple[Node, int]:
        """Follow `path` as far as it exists: the last node, and how many keys were followed."""
        node = self
        for depth, key in enumerate(path):
            child = node.child(key)
            if child is None:
                return node, depth
            node = child
        return node, len(path)

    def where_of(self, path: Sequence[PathKey]) -> str:
        """Return the place of the value at `path`, or of the nearest thing above it."""
        return self.nearest(path)[0].where


def merge(below: Node, above: Node, atomic: frozenset[str] = frozenset(), path: str = "") -> Node:
    """Lay `above` over `below`: mappings merge key by key, everything else is replaced.

    `atomic` lists dotted paths whose mappings are replaced as a whole.
    """
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)) or path in atomic:
        return above
    merged = dict(below.value)
    for key, child in above.value.items():
        inner = f"{path}.{key}" if path else key
        merged[key] = merge(merged[key], child, atomic, inner) if key in merged else child
    return Node(merged, above.where, above.key_where)
