"""The one error that a user sees.

Anything the user can put right (a typo in a file, a missing folder, a schedule
for another page size) is raised as `UserError`; the command line prints it as
one line and exits with code 2. Everything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A mistake that the user can correct.

    Args:
        message: what was found and what is allowed, one sentence, no traceback.
        where: `file:line:column`, an option such as `--tau`, or a path.
    """

    def __init__(self, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest allowed name, or an empty string."""
    match = get_close_matches(name, list(allowed), n=1, cutoff=0.6)
    return f" (did you mean '{match[0]}'?)" if match else ""
