"""Reading a JSON object that a user names: every problem is one line that starts with its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The object in the file; `what` names it in messages.

    Raises:
        UserError: it cannot be read, is not JSON, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(path)) from None
    except ValueError as error:
        raise UserError(f"is not JSON: {error}", str(path)) from None
    if not isinstance(data, dict):
        raise UserError(f"{what} is one object", str(path))
    return data
