"""Printing jobs by a format such as `%i|%.8j|%T`, as squeue and sinfo do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Field = tuple[str, Callable[[Any], object]]
"""A column's heading and what it holds of an item."""

_PART = re.compile(r"%(\.?)(\d*)([a-zA-Z])")


def compiled(form: str, fields: Mapping[str, Field], heading: bool) -> Callable[[Any], str]:
    """A function that prints one item, or (`heading`) the headings for any."""
    parts: list[Callable[[Any], str]] = []
    at = 0
    for match in _PART.finditer(form):
        parts.append(_constant(form[at : match.start()]))
        title, value = fields.get(match[3], (match[3], _nothing))
        shown = _constant(title) if heading else _text(value)
        parts.append(_fitted(shown, int(match[2]), bool(match[1])) if match[2] else shown)
        at = match.end()
    parts.append(_constant(form[at:]))
    return lambda item: "".join([part(item) for part in parts])


def printed(
    items: Iterable[Any], form: str, fields: Mapping[str, Field], headings: bool = True
) -> str:
    """The items a line each, below the headings."""
    lines = [compiled(form, fields, True)(None)] if headings else []
    line = compiled(form, fields, False)
    lines += [line(item) for item in items]
    return "".join(f"{text}\n" for text in lines)


def duration(seconds: float) -> str:
    """A time as Slurm prints it: 1:05, 2:00:00, 1-00:00:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _constant(text: str) -> Callable[[Any], str]:
    return lambda _: text


def _text(value: Callable[[Any], object]) -> Callable[[Any], str]:
    return lambda item: str(value(item))


def _nothing(_: Any) -> str:
    return ""


def _fitted(shown: Callable[[Any], str], width: int, right: bool) -> Callable[[Any], str]:
    if right:
        return lambda item: shown(item)[:width].rjust(width)
    return lambda item: shown(item)[:width].ljust(width)
