"""Reading a JSON file that a user names: every problem is one line that starts with its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError


def read_json(path: Path) -> Any:
    """What the file holds.

    Raises:
        UserError: it cannot be read, is not text, or is not JSON (with line and column).
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", str(path)) from None
    except UnicodeDecodeError:
        raise UserError("is not a text file", str(path)) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"is not JSON: {error.msg}", f"{path}:{error.lineno}:{error.colno}"
        ) from None
