"""What an unquoted YAML scalar means: YAML 1.2's core schema, minus its traps.

`1e-5` is a number, `NO` and `on` are text, and what two YAML readers would read as
two values (`010`, `12:30:00`, `1_000`) stays text, which a number's field refuses.
"""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

_NULL = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_MAX_DIGITS = 40


def resolve(text: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises ValueError for numbers that no field takes: infinite, NaN, or so long that
    a float cannot hold them.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits is too long")
        return int(text)
    if _BASED.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        value = math.nan if text[-1].isalpha() else float(text)
        if not math.isfinite(value):
            raise ValueError(f"'{text}' is not a finite number")
        return value
    return text


_TIME = re.compile(r"([0-9]+):([0-9]{2})(?::([0-9]{2}))?")


def hint(text: str, key: str = "") -> str:
    """Explain why `text`, found at `key` where no text belongs, is text; may be empty."""
    if re.fullmatch(r"[-+]?0[0-9]+", text):
        return f"a leading zero means octal to some readers; write {int(text)}"
    time = _TIME.fullmatch(text)
    if time:
        seconds = int(time[1]) * 3600 + int(time[2]) * 60 + int(time[3] or 0)
        if key.endswith("_min"):
            return f"hours:minutes:seconds is text; in minutes this is {seconds / 60:g}"
        return "hours:minutes:seconds is text; write one number"
    if re.fullmatch(r"[-+]?[0-9]+(_[0-9]+)+", text):
        return f"write {text.replace('_', '')}"
    if text.lower() in {"yes", "no", "on", "off", "y", "n"}:
        return "only true and false are truth values"
    try:
        meant = resolve(text)
    except ValueError:
        return ""
    return "" if isinstance(meant, str) else "remove the quotes"
