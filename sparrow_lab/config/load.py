"""An experiment file becomes a `SweepConfig`, or one sentence with a place.

Order: the files under `include`, the file itself above them, then `--set`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from sparrow_lab.config import describe
from sparrow_lab.config.fields import ATOMIC, flatten
from sparrow_lab.config.grid import overlap, read_grid
from sparrow_lab.config.messages import from_validation
from sparrow_lab.config.nodes import Node, PathKey, merge
from sparrow_lab.config.overrides import apply_override, parse_override
from sparrow_lab.config.schema import PointConfig, SweepConfig
from sparrow_lab.config.space import check_method
from sparrow_lab.config.yaml_source import parse_file
from sparrow_lab.errors import UserError

_ATOMIC = frozenset(f"base.{path}" for path in ATOMIC)
_NEEDS = {"train": "schedule", "evaluate": "train"}


def load_sweep(path: Path | str, overrides: Sequence[str] = ()) -> SweepConfig:
    """Read an experiment file and `--set` overrides.

    Args:
        path: the file.
        overrides: texts `a.b=c`, later ones win.

    Raises:
        UserError: for everything that is wrong, the first thing in the file first. Its
            `where` is `file:line:column` or `--set a.b=c`.
    """
    parsed = [parse_override(text) for text in overrides]
    config = _validated(_with_includes(Path(path), ()), parsed)
    _check_stages(config)
    grid = read_grid(config)
    check_method(config)
    if not grid.include:
        swept = [(keys, axis.name) for axis in grid.axes for keys in axis.fields()]
        _refuse_hidden(parsed, swept)
    return config


def load_base(path: Path | str | None, overrides: Sequence[str] = ()) -> PointConfig:
    """Return the `base` of an experiment file, or the defaults, with overrides laid over it.

    For commands that work on one configuration; axes are left alone. Raises as `load_sweep`.
    """
    parsed = [parse_override(text) for text in overrides]
    root = Node({"name": Node("base", "")}, "") if path is None else _with_includes(Path(path), ())
    return _validated(root, parsed).base


def _validated(root: Node, overrides: Sequence[tuple[tuple[PathKey, ...], Node]]) -> SweepConfig:
    """Lay overrides over a tree and validate it; the config keeps the tree."""
    for keys, value in overrides:
        root = apply_override(root, keys, value)
    try:
        config = SweepConfig.model_validate(root.plain())
    except ValidationError as error:
        raise from_validation(error, root, SweepConfig) from None
    config._source.root = root
    return config


def _with_includes(path: Path, chain: tuple[Path, ...]) -> Node:
    """Parse a file and lay it over the files that it includes."""
    here = Path(os.path.realpath(path))
    root = parse_file(path)
    if not isinstance(root.value, dict):
        raise UserError(
            f"found {describe.found(root.plain())}; allowed: a mapping with "
            + ", ".join(SweepConfig.model_fields),
            root.where,
        )
    include = root.value.pop("include", None)
    if include is None:
        return root
    if not isinstance(include.value, list):
        raise UserError(
            f"include: found {describe.found(include.plain())}; allowed: a list of files, "
            "for example [common.yaml]",
            include.where,
        )
    below = Node({}, root.where)
    for item in include.value:
        if not isinstance(item.value, str) or not item.value:
            raise UserError(
                f"include: found {describe.found(item.plain())}; allowed: a file's path", item.where
            )
        other = path.parent / item.value
        names = [*chain, here]
        if Path(os.path.realpath(other)) in names:
            loop = names[names.index(Path(os.path.realpath(other))) :]
            text = " -> ".join(p.name for p in [*loop, loop[0]])
            raise UserError(f"these files include each other: {text}", item.where)
        if not other.exists():
            raise UserError(f"include: there is no file '{other}'", item.where)
        below = merge(below, _with_includes(other, (*chain, here)), _ATOMIC)
    return merge(below, root, _ATOMIC)


def _check_stages(config: SweepConfig) -> None:
    """Refuse a stage given twice, and one whose forerunner is not there."""
    node = config._source.root.child("stages")
    for i, stage in enumerate(config.stages):
        where = node.value[i].where if node is not None else "stages"
        if stage in config.stages[:i]:
            raise UserError(f"stages: '{stage}' is given twice", where)
        needed = _NEEDS.get(stage)
        if needed and needed not in config.stages:
            raise UserError(f"stages: '{stage}' needs '{needed}', which is not listed", where)


def _refuse_hidden(
    changed: Sequence[tuple[tuple[PathKey, ...], Node]],
    swept: Sequence[tuple[tuple[str, ...], str]],
) -> None:
    """Refuse a `--set` that no point would ever see, because an axis sets the field."""
    for keys, value in changed:
        if keys[0] != "base" or len(keys) == 1:
            continue
        path = ".".join(str(k) for k in keys[1:] if not str(k).isdigit())
        for field in flatten(path, value, value.where):
            for place, name in swept:
                if overlap(place, field.keys) and len(place) <= len(field.keys):
                    raise UserError(
                        f"this has no effect, because the sweep sets '{name}'; "
                        f"use --set 'sweep.axes.{field.name}=[...]'",
                        value.where,
                    )
