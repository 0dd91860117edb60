"""`--set a.b=c`: one value laid over the file, read by the same parser.

A path starts at the top of the file (`launch.parallel`) or, for short, in `base`
(`train.lr` is `base.train.lr`). In lists, a number picks the element
(`sweep.include.0.seed`).
"""

from __future__ import annotations

from sparrow_lab.config import describe
from sparrow_lab.config.fields import ATOMIC
from sparrow_lab.config.messages import type_at
from sparrow_lab.config.methods import Dimension
from sparrow_lab.config.nodes import Node, PathKey, merge
from sparrow_lab.config.schema import PointConfig, SweepConfig
from sparrow_lab.config.yaml_source import parse
from sparrow_lab.errors import UserError, nearest

_SCHEDULE = ("base", "sparsity", "schedule")


def parse_override(text: str) -> tuple[tuple[PathKey, ...], Node]:
    """Split `a.b=c` into a path from the top of the file and a value with its place."""
    where = f"--set {text}"
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise UserError("found no 'path=value'; allowed: for example --set train.lr=1e-5", where)
    keys = path.split(".")
    if "" in keys:
        raise UserError(f"the path '{path}' has an empty part", where)
    if keys[0] in PointConfig.model_fields:
        keys = ["base", *keys]
    elif keys[0] not in SweepConfig.model_fields:
        names = [*SweepConfig.model_fields, *PointConfig.model_fields]
        raise UserError(
            f"there is no key '{keys[0]}'{nearest(keys[0], names)}; allowed: {', '.join(names)}",
            where,
        )
    return _group(keys), parse(value, where, option=True)


def apply_override(root: Node, path: tuple[PathKey, ...], value: Node) -> Node:
    """Return a copy of the tree with `value` at `path`; mappings on the way are made."""
    return _put(root, path, value, ())


def _group(keys: list[str]) -> tuple[PathKey, ...]:
    """Join what is one key in the file: `sweep.axes.train.lr` has the key `train.lr`."""
    if keys[:2] == ["sweep", "axes"] and len(keys) > 2:
        names = [k for k in keys[2:] if not k.isdigit()]
        return ("sweep", "axes", ".".join(names), *keys[2 + len(names) :])
    if keys[:2] == ["sweep", "space"] and len(keys) > 2:
        last = keys[-1:] if keys[-1] in Dimension.model_fields else []
        return ("sweep", "space", ".".join(keys[2 : len(keys) - len(last)]), *last)
    if keys[0] == "sweep" and len(keys) > 2 and keys[2].isdigit():
        rest: list[PathKey] = [".".join(keys[3:])] if len(keys) > 3 else []
        return ("sweep", keys[1], int(keys[2]), *rest)
    return tuple(keys)


def _put(
    node: Node | None, path: tuple[PathKey, ...], value: Node, done: tuple[PathKey, ...]
) -> Node:
    if not path:
        return _lay(node, value, done)
    key, rest = path[0], path[1:]
    old = None if node is None or done == _SCHEDULE else node.value
    where = value.where if node is None or old is None else node.where
    if isinstance(old, list) and str(key).isdigit():
        index = int(key)
        if index >= len(old):
            raise UserError(
                f"'{_dotted(done)}' has {len(old)} elements, none at {key}", value.where
            )
        return Node(
            [_put(n, rest, value, (*done, key)) if i == index else n for i, n in enumerate(old)],
            where,
        )
    if not isinstance(old, (dict, type(None))) or isinstance(key, int):
        plain = None if node is None else node.plain()
        raise UserError(
            f"'{_dotted(done)}' is {describe.found(plain)}, which has no '{key}'", value.where
        )
    before = (old or {}).get(str(key))
    child = _put(before, rest, value, (*done, key))
    child.key_where = before.key_where if before is not None and rest else value.where
    return Node({**(old or {}), str(key): child}, where)


def _lay(node: Node | None, value: Node, path: tuple[PathKey, ...]) -> Node:
    """Replace a value; a mapping for a section is laid over it key by key."""
    dotted = _dotted(path)
    section = describe.is_model(describe.parts(type_at(SweepConfig, path)[0])[0])
    if node is not None and section and dotted.removeprefix("base.") not in ATOMIC:
        return merge(node, value, frozenset(f"base.{p}" for p in ATOMIC), dotted)
    return Node(value.value, value.where)


def _dotted(path: tuple[PathKey, ...]) -> str:
    return ".".join(str(k) for k in path) or "the file"
