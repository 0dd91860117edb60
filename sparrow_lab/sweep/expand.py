"""From axes to points: every combination, with what is left out and what is added.

    points = (proposals x) axes x zip bundles - exclude, then include

With no axes and no bundles the base itself is the one combination, unless `include`
lists the points. Entries of `include` are added as they are; `exclude` acts on the
combinations only. A proposal is what a search method sets: one draw, one trial. That
of a bracket already names its combination of the axes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from sparrow_lab.config.grid import Choice, Grid, overlap, read_grid
from sparrow_lab.config.schema import Method, PointConfig, SweepConfig
from sparrow_lab.config.space import is_adaptive
from sparrow_lab.errors import UserError
from sparrow_lab.sweep.canonical import Config, defaults

MAX_POINTS = 100_000


@dataclass(frozen=True)
class Places:
    """Where the fields of one point were written, for errors found in the whole point."""

    settings: Choice
    config: SweepConfig

    def of(self, *paths: str) -> str:
        """Return the place of the field at fault; of several, that of one that an axis sets.

        A field that is not written anywhere has the place of what is nearest above it.
        """
        wanted = [tuple(path.split(".")) for path in paths]
        for field, setting in reversed(self.settings.items()):
            if any(overlap(field.keys, keys) for keys in wanted):
                return setting.where
        root = self.config._source.root
        if root is None:
            return f"base.{paths[0]}"
        found: str = root.where_of(("base", *wanted[0]))
        return found


@dataclass(frozen=True)
class Combination:
    """One resolved point: every field in JSON types, and where each was written."""

    config: Config
    places: Places


@dataclass(frozen=True)
class Expansion:
    """All points of a sweep, and the places in a point that differ by its design."""

    points: list[Combination]
    swept: list[tuple[str, ...]]


def expand(
    config: SweepConfig, proposals: Sequence[Choice] = (), include: bool = True
) -> Expansion:
    """Expand a sweep.

    Args:
        proposals: what the search method of the sweep sets; empty for a grid. An adaptive
            method without proposals has no combinations yet.
        include: False leaves out the entries of `include`.

    Raises:
        UserError: a combination that the schema refuses (with the place of the value that
            makes it so), an `exclude` that matches nothing, no points, or too many.
    """
    grid = read_grid(config)
    extras = [choice for choice, _ in grid.include] if include else []
    rows = _combinations(grid, config.sweep.method, proposals)
    count = rows.count + len(extras)
    if count > MAX_POINTS:
        raise UserError(
            f"the axes give {count:,} points; at most {MAX_POINTS:,} are allowed", "sweep"
        )
    base: Config = config.base.model_dump(mode="json", exclude_unset=True)
    sections = _Sections(config)
    points = []
    matched = [False] * len(grid.exclude)
    for settings in rows.settings:
        raw = _with(base, settings)
        hits = [i for i, (choice, _) in enumerate(grid.exclude) if _matches(raw, choice)]
        for i in hits:
            matched[i] = True
        if not hits:
            points.append(sections.resolve(raw, settings))
    adaptive = is_adaptive(config)
    for (_, where), hit in zip(grid.exclude, matched, strict=True):
        if not hit and not adaptive:
            raise UserError("this entry of 'exclude' matches no combination", where)
    points += [sections.resolve(_with(base, choice), choice) for choice in extras]
    if not points and not adaptive:
        raise UserError("every combination is excluded; nothing is left to run", "sweep.exclude")
    return Expansion(points, _swept(grid, proposals))


@dataclass(frozen=True)
class _Rows:
    """Settings of all combinations, made one by one, and how many there will be."""

    count: int
    settings: Iterator[Choice]


def _combinations(grid: Grid, method: Method, proposals: Sequence[Choice]) -> _Rows:
    if method == "bracket":
        return _Rows(len(proposals), iter(proposals))
    count = math.prod(len(axis.choices) for axis in grid.axes)
    if method == "grid":
        if not grid.axes and grid.include:
            return _Rows(0, iter(()))
        return _Rows(count, _product(grid, ({},)))
    return _Rows(count * len(proposals), _product(grid, proposals))


def _product(grid: Grid, proposals: Sequence[Choice]) -> Iterator[Choice]:
    for row in itertools.product(*(axis.choices for axis in grid.axes), proposals):
        settings: Choice = {}
        for choice in row:
            settings.update(choice)
        yield settings


def _with(base: Config, settings: Choice) -> Config:
    """Return `base` with settings put in; what they do not touch is shared, not copied."""
    raw = dict(base)
    fresh: set[tuple[str, ...]] = set()
    for field, setting in settings.items():
        holder = raw
        for depth, key in enumerate(field.keys[:-1], start=1):
            path = field.keys[:depth]
            if path not in fresh:
                holder[key] = dict(holder.get(key) or {})
                fresh.add(path)
            holder = holder[key]
        holder[field.keys[-1]] = setting.value
    return raw


def _matches(raw: Config, choice: Choice) -> bool:
    return all(_get(raw, field.keys) == setting.value for field, setting in choice.items())


def _get(raw: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return a field's value, or its default where the point does not set it."""
    for source in (raw, defaults()):
        value: Any = source
        for key in keys:
            if not isinstance(value, Mapping) or key not in value:
                break
            value = value[key]
        else:
            return value
    return None


class _Sections:
    """Validates points section by section, each distinct section once.

    Equal sections of two points are one object, which later steps may go by.
    """

    def __init__(self, config: SweepConfig) -> None:
        self.config = config
        self.known: dict[tuple[str, str], Any] = {}

    def resolve(self, raw: Config, settings: Choice) -> Combination:
        """Return a point with all fields present; UserError where the schema refuses it."""
        places = Places(settings, self.config)
        resolved = {}
        for name in PointConfig.model_fields:
            key = (name, json.dumps(raw[name], sort_keys=True) if name in raw else "")
            if key not in self.known:
                self.known[key] = self._section(name, raw, places)
            resolved[name] = self.known[key]
        return Combination(resolved, places)

    def _section(self, name: str, raw: Config, places: Places) -> Any:
        only = {name: raw[name]} if name in raw else {}
        try:
            return PointConfig.model_validate(only).model_dump(mode="json", include={name})[name]
        except ValidationError as error:
            detail = error.errors()[0]
            path = ".".join(str(key) for key in detail["loc"])
            text = detail.get("ctx", {}).get("error", detail["msg"])
            raise UserError(f"{path}: {text}", places.of(path)) from None


def _swept(grid: Grid, proposals: Sequence[Choice]) -> list[tuple[str, ...]]:
    """Return the swept places, in the order of the file, without repetition.

    Options of a task that an axis sets together count one by one.
    """
    choices = [choice for axis in grid.axes for choice in axis.choices]
    choices += [choice for choice, _ in grid.include]
    choices += proposals
    places: dict[tuple[str, ...], None] = {}
    for choice in choices:
        for field, setting in choice.items():
            if field.keys == ("task", "params"):
                places.update(dict.fromkeys((*field.keys, key) for key in setting.value))
            else:
                places[field.keys] = None
    return list(places)
