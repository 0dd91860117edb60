"""What is said of an option's value that is not allowed: what was found, and what is allowed."""

from __future__ import annotations

import re
from typing import Any

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def value_problem(error: Any) -> str | None:
    """`--only: found 'x'; allowed: a whole number` for a value that typer refused, else None.

    Newer releases of typer have pydantic look at values, older ones say it in a sentence; what
    neither tells is left in typer's own words.
    """
    names = getattr(getattr(error, "param", None), "opts", None)
    told = _of_pydantic(error.__cause__) or _of_sentence(str(getattr(error, "message", "")))
    return f"{names[-1]}: found '{told[0]}'; allowed: {told[1]}" if names and told else None


def _of_pydantic(cause: Any) -> tuple[str, str] | None:
    """(found, allowed) of the first problem of a ValidationError."""
    if not hasattr(cause, "errors"):
        return None
    first = cause.errors()[0]
    bounds = first.get("ctx") or {}
    kind = KINDS.get(str(first["type"]).partition("_")[0])
    if kind is None and first["type"] == "literal_error":
        kind = str(bounds.get("expected"))
    if kind is None:
        kind = next((f"{word} {bounds[k]}" for k, word in BOUNDS.items() if k in bounds), None)
    return None if kind is None else (str(first["input"]), kind)


def _of_sentence(message: str) -> tuple[str, str] | None:
    """(found, allowed) of `'x' is not a valid integer range.` or `'x' is not one of 'a', 'b'.`"""
    if match := re.match(r"'(.*)' is not a valid (int|float|bool)", message):
        return match[1], KINDS[match[2]]
    if match := re.match(r"(?:Value error, )?'(.*)' is not one of (.*?)\.?$", message):
        return match[1], match[2].replace("'", "")
    return None
