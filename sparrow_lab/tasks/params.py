"""Checking of `task.params`, whose fields belong to each task."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sparrow_lab.config.schema import TaskConfig
from sparrow_lab.errors import UserError, nearest

Params = TypeVar("Params", bound=BaseModel)


def parse_params(model: type[Params], config: TaskConfig) -> Params:
    """Check `task.params` against a task's own options.

    Raises:
        UserError: naming the option, what was found and the allowed names.
    """
    try:
        return model.model_validate(config.params)
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        key = ".".join(str(part) for part in first["loc"]) or "params"
        hint = nearest(key, model.model_fields) if first["type"] == "extra_forbidden" else ""
        raise UserError(f"{first['msg']}{hint}", f"task.params.{key}") from None
