"""One finding: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]
"""fail: a sweep cannot work like this. warn: it works, but something is lost or slow."""


@dataclass(frozen=True)
class Check:
    """`found` is one line; `remedy` is empty when all is well."""

    name: str
    level: Level
    found: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """For `--json`."""
        return {
            "name": self.name,
            "level": self.level,
            "found": self.found,
            "remedy": self.remedy,
        }


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, "ok", found)


def warn(name: str, found: str, remedy: str) -> Check:
    """It works, but not as well as it could."""
    return Check(name, "warn", found, remedy)


def fail(name: str, found: str, remedy: str) -> Check:
    """It will not work."""
    return Check(name, "fail", found, remedy)
