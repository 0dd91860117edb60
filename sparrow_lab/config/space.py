"""The search space of a sweep, read and checked: every value in it is one that its field takes.

A dimension is one field of a point, with a range of numbers or a list of choices. Values are
kept as a user would write them (`0.86` for `sparsity.schedule.tau`), and become settings of a
point through `choice_of`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparrow_lab.config import describe
from sparrow_lab.config.fields import FieldPath, check, flatten, lookup
from sparrow_lab.config.grid import Axis, Choice, Setting, as_node, overlap, read_grid
from sparrow_lab.config.nodes import Node
from sparrow_lab.config.schema import ADAPTIVE, SweepConfig
from sparrow_lab.errors import UserError

DIGITS = 4
"""Significant digits of a drawn number: more would make no difference and be hard to read."""


MOST_COMBINATIONS = 10_000
"""Larger spaces are not counted out."""


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones where `whole` is true."""

    path: str
    low: float
    high: float
    whole: bool = False
    log: bool = False
    step: float | None = None
    where: str = ""

    def tidy(self, value: float) -> float | int:
        """The nearest number of the range that is written with few digits."""
        if self.whole:
            step = self.step or 1
            return int(self.low + round((value - self.low) / step) * step)
        if self.step is not None:
            value = self.low + round((value - self.low) / self.step) * self.step
            return min(self.high, max(self.low, float(f"{value:.10g}")))
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))

    def holds(self, value: Any) -> bool:
        """Whether a value lies in the range."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and self.low <= value <= self.high


@dataclass(frozen=True)
class Options:
    """Values without an order."""

    path: str
    values: tuple[Any, ...]
    where: str = ""

    def holds(self, value: Any) -> bool:
        """Whether a value is one of the choices."""
        return name_of(value) in {name_of(v) for v in self.values}


Dim = Range | Options


def name_of(value: Any) -> str:
    """One text for one value, whatever its kind."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def size_of(space: Sequence[Dim]) -> float:
    """How many combinations a space has; infinite when a range has no steps."""
    return math.prod(_count(dim) for dim in space)


def read_space(config: SweepConfig) -> list[Dim]:
    """Check `sweep.space` and return its dimensions in the order of the file.

    Raises:
        UserError: with the place: a method without a space or a space without such a method,
            a field that does not exist, an end or a choice that the field does not take, a
            field that an axis sets too.
    """
    root = sweep_node(config)
    method = config.sweep.method
    node = root.child("space")
    if method not in ("random", "optuna"):
        if config.sweep.space:
            assert node is not None
            raise UserError(
                f"'space' is for the methods random and optuna; the method is {method}",
                node.key_where or node.where,
            )
        return []
    if node is None or not node.value:
        place = root.child("method")
        raise UserError(
            f"the method {method} needs a 'space', for example space: "
            "{train.lr: {low: 1e-5, high: 1e-3, log: true}}",
            place.where if place is not None else "sweep",
        )
    dims = [_dimension(path, child, config) for path, child in node.value.items()]
    _refuse_overlaps(dims, read_grid(config).axes)
    return dims


def check_method(config: SweepConfig) -> None:
    """Refuse a `sweep:` section whose parts do not fit its method; UserError with the place."""
    read_space(config)
    root, sweep = sweep_node(config), config.sweep
    for name in ("random", "optuna", "bracket"):
        section = root.child(name)
        if section is not None and sweep.method != name:
            raise UserError(
                f"'{name}' belongs to the method {name}; the method is {sweep.method}",
                section.key_where or section.where,
            )
    if sweep.method == "optuna":
        stage = sweep.optuna.stage
        if stage is not None and stage not in config.stages:
            where = root.where_of(("optuna", "stage"))
            raise UserError(f"the stage '{stage}' is not among the sweep's stages", where)
        if sweep.optuna.sampler == "brute_force":
            _refuse_endless(read_space(config))
    if sweep.method == "bracket":
        read_bracket(config)


def read_bracket(config: SweepConfig) -> Range:
    """The field that a bracket narrows, as a range; UserError with the place."""
    root, bracket = sweep_node(config), config.sweep.bracket
    method = root.child("method")
    if bracket is None:
        raise UserError(
            "the method bracket needs a section 'bracket' with field, low, high and width",
            method.where if method is not None else "sweep",
        )
    if "train" not in config.stages:
        where = method.where if method is not None else "sweep"
        raise UserError("the method bracket judges training: it needs the stage 'train'", where)
    section = root.child("bracket")
    assert section is not None
    field = lookup(bracket.field, section.where_of(("field",)))
    ends = [section.child(end) or Node(getattr(bracket, end), section.where) for end in _ENDS]
    for end in ends:
        check(field, end)
    whole = _is_whole(field, ends)
    if _kind(field) is None and not whole:
        raise UserError(
            f"'{bracket.field}' takes {describe.allowed(field.annotation, field.metadata)}, which "
            "has no order; allowed: a field of numbers",
            section.where_of(("field",)),
        )
    grid = read_grid(config)
    for axis in grid.axes:
        for keys in axis.fields():
            for taken in (field.keys, ("seed",)):
                if overlap(keys, taken):
                    text = f"the bracket sets '{'.'.join(taken)}' itself; leave out this axis"
                    raise UserError(text, axis.where)
    if overlap(field.keys, ("seed",)):
        raise UserError("a seed has no order to narrow", section.where_of(("field",)))
    scale = bracket.scale == "log"
    where = section.where_of(("field",))
    return Range(bracket.field, bracket.low, bracket.high, whole, scale, None, where)


def choice_of(values: Mapping[str, Any], places: Mapping[str, str] | None = None) -> Choice:
    """Settings of a point from dotted paths and plain values.

    Raises:
        UserError: a field that does not exist (any more) or does not take its value.
    """
    made: Choice = {}
    for path, value in values.items():
        where = (places or {}).get(path, path)
        for field, node in flatten(path, as_node(value, where), where).items():
            made[field] = Setting(check(field, node), where)
    return made


def values_of(choice: Choice) -> dict[str, Any]:
    """Inverse of `choice_of`: dotted paths and plain values."""
    return {
        field.name: setting.value[field.form] if field.form else setting.value
        for field, setting in choice.items()
    }


def is_adaptive(config: SweepConfig) -> bool:
    """Whether the sweep's points are chosen while it runs."""
    return config.sweep.method in ADAPTIVE


def sweep_node(config: SweepConfig) -> Node:
    """The `sweep:` section with places; those of a config without a file are dotted paths."""
    root = config._source.root
    found = root.child("sweep") if root is not None else None
    if isinstance(found, Node):
        return found
    plain = {} if root is not None else config.sweep.model_dump(mode="json", exclude_unset=True)
    return as_node(plain, "sweep")


_ENDS = ("low", "high")


def _dimension(path: str, node: Node, config: SweepConfig) -> Dim:
    where = node.key_where or node.where
    field = lookup(path, where)
    settings = config.sweep.space[path]
    if settings.choices is not None:
        listed = node.child("choices")
        nodes: list[Node] = listed.value if listed is not None else []
        seen: dict[str, str] = {}
        for one in nodes:
            for target, part in flatten(path, one, where).items():
                check(target, part)
            name = name_of(one.plain())
            if name in seen:
                raise UserError(f"'{path}' has this choice twice; first at {seen[name]}", one.where)
            seen[name] = one.where
        return Options(path, tuple(one.plain() for one in nodes), where)
    assert settings.low is not None and settings.high is not None
    if field.is_section or (field.annotation is not Any and _kind(field) is None):
        raise UserError(
            f"'{path}' takes {describe.allowed(field.annotation, field.metadata)}, which has no "
            "range; give 'choices'",
            where,
        )
    ends = [node.child(end) or Node(None, where) for end in _ENDS]
    for end in ends:
        check(field, end)
    whole = _is_whole(field, ends)
    if whole and settings.step is not None and settings.step != int(settings.step):
        raise UserError(f"'{path}' takes whole numbers; so must 'step'", node.where_of(("step",)))
    low, high = settings.low, settings.high
    return Range(path, low, high, whole, settings.log, settings.step, where)


def _kind(field: FieldPath) -> type | None:
    core = describe.parts(field.annotation)[0]
    return core if core in (int, float) else None


def _is_whole(field: FieldPath, ends: Sequence[Node]) -> bool:
    """A field of whole numbers, or an option of a task whose ends are written as such."""
    if field.annotation is Any:
        return all(isinstance(end.value, int) for end in ends)
    return _kind(field) is int


def _refuse_overlaps(dims: Sequence[Dim], axes: Sequence[Axis]) -> None:
    taken: list[tuple[tuple[str, ...], str]] = [
        (keys, axis.name) for axis in axes for keys in axis.fields()
    ]
    for dim in dims:
        keys = lookup(dim.path, dim.where).keys
        for other, name in taken:
            if overlap(keys, other):
                raise UserError(f"the field '{dim.path}' is also set by '{name}'", dim.where)
        taken.append((keys, dim.path))


def _count(dim: Dim) -> float:
    if isinstance(dim, Options):
        return len(dim.values)
    if not dim.whole and dim.step is None:
        return math.inf
    return round((dim.high - dim.low) / (dim.step or 1)) + 1


def _refuse_endless(dims: Sequence[Dim]) -> None:
    for dim in dims:
        if isinstance(dim, Range) and not dim.whole and dim.step is None:
            text = f"brute_force tries every value, but '{dim.path}' has no 'step'"
            raise UserError(text, dim.where)
    if size_of(dims) > MOST_COMBINATIONS:
        text = f"brute_force is for at most {MOST_COMBINATIONS:,} combinations; this space has "
        raise UserError(f"{text}{size_of(dims):,}", dims[0].where)
