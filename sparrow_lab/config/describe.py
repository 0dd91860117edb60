"""Types in words: what a field allows, and what was found instead."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel

from sparrow_lab.config.schema import SCHEDULE_FORMS

_NUMBERS = {int: "a whole number", float: "a number"}
SCHEDULE_WORDS = (
    "dense, {tau: 0.86}, {budget: 512}, {file: schedule.json} or {preset: qwen3-1.7b-0.86}"
)


def is_model(annotation: Any) -> bool:
    """Tell whether a type is one of the schema's sections."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def parts(annotation: Any) -> tuple[Any, list[Any], bool]:
    """Split a type into its core, its constraints, and whether null is allowed."""
    metadata: list[Any] = []
    while get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata += more
    if get_origin(annotation) in (Union, UnionType):
        members = [m for m in get_args(annotation) if m is not NoneType]
        if len(members) == 1 and len(get_args(annotation)) == 2:
            core, inner, _ = parts(members[0])
            return core, metadata + inner, True
    return annotation, metadata, False


def is_schedule(annotation: Any) -> bool:
    """Tell whether a type is the union of schedule forms."""
    members = {parts(m)[0] for m in get_args(annotation)}
    return bool(members) and members == set(SCHEDULE_FORMS.values())


def allowed(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Say in words what a field takes."""
    core, inner, optional = parts(annotation)
    text = _core(core, [*metadata, *inner])
    return text + " or null" if optional else text


def literals(annotation: Any) -> list[str]:
    """Return the words that a field takes, if it takes only certain words."""
    core, _, _ = parts(annotation)
    return [str(v) for v in get_args(core)] if get_origin(core) is Literal else []


def found(value: Any) -> str:
    """Say in words what was found."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text '{value if len(value) <= 40 else value[:37] + '...'}'"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        keys = ", ".join(str(k) for k in list(value)[:4])
        return f"a mapping with {keys}" if keys else "an empty mapping"
    return repr(value)


def _core(core: Any, metadata: Sequence[Any]) -> str:
    if core in _NUMBERS:
        return _NUMBERS[core] + _bounds(metadata)
    if core is bool:
        return "true or false"
    if core is str:
        return "text"
    if core is Any:
        return "any value"
    if is_schedule(core):
        return SCHEDULE_WORDS
    if is_model(core):
        return "a mapping with " + ", ".join(core.model_fields)
    origin, arguments = get_origin(core), get_args(core)
    if origin is Literal:
        return ", ".join("true" if v is True else str(v) for v in arguments)
    if origin is list:
        least = next((m.min_length for m in metadata if isinstance(m, MinLen)), 0)
        start = f"a list of at least {least}" if least else "a list"
        return start + ("" if arguments[0] is Any else f", each {allowed(arguments[0])}")
    if origin is tuple:
        return f"a list of {len(arguments)}, each {allowed(arguments[0])}"
    return "a mapping" if origin is dict else str(core)


def _bounds(metadata: Sequence[Any]) -> str:
    bounds = []
    for constraint in metadata:
        if isinstance(constraint, Ge):
            bounds.append(f"at least {constraint.ge}")
        elif isinstance(constraint, Gt):
            bounds.append(f"above {constraint.gt}")
        elif isinstance(constraint, Le):
            bounds.append(f"at most {constraint.le}")
        elif isinstance(constraint, Lt):
            bounds.append(f"below {constraint.lt}")
        elif isinstance(constraint, MaxLen):
            bounds.append(f"at most {constraint.max_length} long")
    return ", " + " and ".join(bounds) if bounds else ""
