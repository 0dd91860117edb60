"""From pydantic's errors to one sentence with a place.

Every sentence has the form: path, what was found, what is allowed, the nearest name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError

from sparrow_lab.config import describe
from sparrow_lab.config.nodes import Node, PathKey
from sparrow_lab.config.scalars import hint
from sparrow_lab.config.schema import SCHEDULE_FORMS, PointConfig, SweepConfig
from sparrow_lab.errors import UserError, nearest


def from_validation(
    error: ValidationError,
    node: Node,
    annotation: Any,
    metadata: Sequence[Any] = (),
    path: tuple[PathKey, ...] = (),
) -> UserError:
    """Turn a failed validation of `node` into the one error that comes first in the text.

    Args:
        node: what was validated.
        annotation, metadata: the type it was validated against.
        path: where `node` hangs in the experiment file, for the sentence only.
    """
    found = [_one(detail, node, annotation, metadata, path) for detail in error.errors()]
    found.sort(key=lambda e: _place(e.where))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return UserError(found[0].message + more, found[0].where)


def dotted(path: Sequence[PathKey]) -> str:
    """Write a path as `base.train.lr` or `sweep.zip[0]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def wrong_value(
    node: Node, path: Sequence[PathKey], annotation: Any, metadata: Sequence[Any] = ()
) -> UserError:
    """Say that the value of `node` is not one that the type takes."""
    value = node.plain()
    if describe.is_schedule(describe.parts(annotation)[0]):
        words = [value] if isinstance(value, str) else list(value or []) if _is_map(value) else []
        guess = next((g for g in (nearest(str(w), SCHEDULE_FORMS) for w in words) if g), "")
    else:
        guess = nearest(str(value), describe.literals(annotation))
    text = f"found {describe.found(value)}; allowed: {describe.allowed(annotation, metadata)}"
    key = str(path[-1]) if path else ""
    advice = hint(value, key) if isinstance(value, str) and not _takes_text(annotation) else ""
    label = dotted(path)
    return UserError(
        (f"{label}: " if label else "") + text + guess + (f" ({advice})" if advice else ""),
        node.where,
    )


def unknown_key(
    key: str, path: Sequence[PathKey], names: Sequence[str], where: str | None
) -> UserError:
    """Say that a mapping has a key that nobody reads."""
    inside = f" in '{dotted(path)}'" if path else ""
    guess = nearest(key, names)
    if "." in key:
        guess = " (write nested keys one below the other)"
    elif not path and key in PointConfig.model_fields:
        guess = f" (it belongs under 'base': base.{key})"
    return UserError(f"unknown key '{key}'{inside}{guess}; allowed: {', '.join(names)}", where)


def _one(
    detail: Any, node: Node, annotation: Any, metadata: Sequence[Any], prefix: tuple[PathKey, ...]
) -> UserError:
    raw: tuple[PathKey, ...] = tuple(detail["loc"])
    path = tuple(k for k in raw if not _is_tag(k))
    kind = detail["type"]
    if kind == "extra_forbidden":
        holder = type_at(annotation, raw[:-1])[0]
        bad = node.nearest(path)[0]
        names = list(getattr(describe.parts(holder)[0], "model_fields", {}))
        return unknown_key(str(path[-1]), prefix + path[:-1], names, bad.key_where or bad.where)
    if kind == "missing" and isinstance(raw[-1], int):
        raw = raw[:-1]  # a list that is too short is wrong as a whole
        path = path[:-1]
    elif kind == "missing":
        inside = f" in '{dotted(prefix + path[:-1])}'" if prefix + path[:-1] else ""
        return UserError(f"the key '{path[-1]}' is missing{inside}", node.where_of(path[:-1]))
    place = node.nearest(path)[0]
    if kind == "value_error":
        label = dotted(prefix + path)
        text = str(detail.get("ctx", {}).get("error", detail["msg"]))
        # what is wrong of a mapping is one key beside another: its own key is the place
        where = place.key_where if isinstance(place.value, dict) else None
        return UserError(f"{label}: {text}" if label else text, where or place.where)
    if kind == "string_pattern_mismatch" and annotation is SweepConfig and path == ("name",):
        return UserError(
            f"name: found {describe.found(place.plain())}; allowed: letters, digits, '_', '.' and "
            "'-', starting with a letter or digit",
            place.where,
        )
    if kind in {"string_too_short", "string_too_long"}:
        size = len(str(place.plain()))
        limits = detail.get("ctx", {})
        bound = (
            f"at least {limits['min_length']}"
            if "min_length" in limits
            else f"at most {limits['max_length']}"
        )
        return UserError(
            f"{dotted(prefix + path)}: found text of {size} characters; allowed: {bound}",
            place.where,
        )
    inner, inner_metadata = type_at(annotation, raw)
    return wrong_value(place, prefix + path, inner, inner_metadata or (metadata if not raw else ()))


def type_at(annotation: Any, path: Sequence[PathKey]) -> tuple[Any, Sequence[Any]]:
    """Follow a path of pydantic (with its tags) through types; (type, constraints)."""
    metadata: Sequence[Any] = ()
    for key in path:
        core, _, _ = describe.parts(annotation)
        if _is_tag(key):
            annotation, metadata = SCHEDULE_FORMS[str(key)[1:-1]], ()
        elif describe.is_model(core):
            field = core.model_fields.get(str(key))
            if field is None:
                return Any, ()
            annotation, metadata = field.annotation, field.metadata
        elif get_origin(core) is dict:
            annotation, metadata = get_args(core)[1], ()
        elif get_origin(core) in (list, tuple):
            annotation, metadata = get_args(core)[0], ()
        else:
            break
    return annotation, metadata


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _takes_text(annotation: Any) -> bool:
    core = describe.parts(annotation)[0]
    return core is str or bool(describe.literals(annotation))


def _is_tag(key: PathKey) -> bool:
    return isinstance(key, str) and key.startswith("<") and key[1:-1] in SCHEDULE_FORMS


def _place(where: str | None) -> tuple[int, int]:
    match = re.search(r":(\d+):(\d+)$", where or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)
