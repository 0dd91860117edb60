"""Dotted paths into a point: which exist, what they take, and how a value is checked.

Axes, zips, includes, excludes and `--set` all name fields by such a path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from sparrow_lab.config import describe
from sparrow_lab.config.messages import from_validation
from sparrow_lab.config.nodes import Node
from sparrow_lab.config.schema import SCHEDULE_FORMS, PointConfig
from sparrow_lab.errors import UserError, nearest

SCHEDULE = ("sparsity", "schedule")
ATOMIC = frozenset({"sparsity.schedule", "sparsity.reserved", "task.params"})
"""Mappings that are replaced as a whole: their keys only make sense together."""

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class FieldPath:
    """One field of a point.

    `keys` is where a value is put; `form` is set for a path such as
    `sparsity.schedule.tau`, whose value v is put as `{tau: v}` at `keys`.
    """

    keys: tuple[str, ...]
    annotation: Any = field(compare=False)
    metadata: tuple[Any, ...] = field(default=(), compare=False)
    form: str | None = None

    @property
    def name(self) -> str:
        """The dotted path, as a user writes it."""
        return ".".join(self.keys + ((self.form,) if self.form else ()))

    @property
    def is_section(self) -> bool:
        """True for a section whose mapping is laid over the base key by key."""
        core = describe.parts(self.annotation)[0]
        return describe.is_model(core) and self.name not in ATOMIC and self.form is None


def lookup(path: str, where: str | None) -> FieldPath:
    """Find the field that a dotted path names; UserError with the nearest path if none."""
    keys = tuple(path.split("."))
    annotation: Any = PointConfig
    metadata: tuple[Any, ...] = ()
    for depth, key in enumerate(keys):
        core = describe.parts(annotation)[0]
        if keys[:depth] == ("task", "params"):
            return FieldPath(keys, Any)
        if keys[:depth] == SCHEDULE and key in SCHEDULE_FORMS and depth == len(keys) - 1:
            info = SCHEDULE_FORMS[key].model_fields[key]
            return FieldPath(SCHEDULE, info.annotation, tuple(info.metadata), form=key)
        if not describe.is_model(core) or key not in core.model_fields:
            raise UserError(f"there is no field '{path}'{_nearest_path(path)}", where)
        info = core.model_fields[key]
        annotation, metadata = info.annotation, tuple(info.metadata)
    return FieldPath(keys, annotation, metadata)


@cache
def all_paths() -> tuple[str, ...]:
    """Return every dotted path that `lookup` knows, sections before their fields."""
    return tuple(_walk(PointConfig, ""))


def flatten(path: str, node: Node, where: str | None) -> dict[FieldPath, Node]:
    """Split a value for `path` into values of single fields.

    A mapping for a section (`model: {name: tiny-m}`) becomes one entry a key.
    """
    target = lookup(path, where)
    if target.is_section and isinstance(node.value, dict):
        flat: dict[FieldPath, Node] = {}
        for key, child in node.value.items():
            flat.update(flatten(f"{path}.{key}", child, child.key_where or child.where))
        return flat
    return {target: node}


def check(target: FieldPath, node: Node) -> Any:
    """Return the value as the schema stores it, in JSON types; UserError if it does not fit.

    `1` becomes `1.0` for a float field, `dense` becomes `{"dense": true}`.
    """
    adapter = _adapter(target)
    try:
        value = adapter.dump_python(adapter.validate_python(node.plain()), mode="json")
    except ValidationError as error:
        path = target.keys + ((target.form,) if target.form else ())
        raise from_validation(error, node, target.annotation, target.metadata, path) from None
    return {target.form: value} if target.form else value


def _adapter(target: FieldPath) -> TypeAdapter[Any]:
    return _adapter_of(target.name) if target.annotation is not Any else _ANY


_ANY: TypeAdapter[Any] = TypeAdapter(Any)


@cache
def _adapter_of(name: str) -> TypeAdapter[Any]:
    target = lookup(name, None)
    if describe.is_model(target.annotation):
        return TypeAdapter(target.annotation)
    annotation: Any = target.annotation
    for item in target.metadata:
        annotation = Annotated[annotation, item]
    return TypeAdapter(annotation, config=_STRICT)


def _walk(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for key, info in model.model_fields.items():
        yield prefix + key
        core = describe.parts(info.annotation)[0]
        if describe.is_model(core):
            yield from _walk(core, f"{prefix}{key}.")
        elif describe.is_schedule(core):
            yield from (f"{prefix}{key}.{form}" for form in SCHEDULE_FORMS)


def _nearest_path(path: str) -> str:
    """Guess which field was meant: one of the same last name, else one spelled alike."""
    last = path.rsplit(".", 1)[-1]
    same = [f"'{p}'" for p in all_paths() if p.rsplit(".", 1)[-1] == last and p != path]
    if same:
        return f" (did you mean {' or '.join(same)}?)"
    guess = nearest(path, all_paths())
    if guess:
        return guess
    by_last = {p.rsplit(".", 1)[-1]: p for p in all_paths()}
    close = get_close_matches(last, by_last, n=1)
    return f" (did you mean '{by_last[close[0]]}'?)" if close else ""
