"""The 20 schedules that the Sparrow paper's release carries, as `Schedule` objects.

They are baselines for Qwen3 1.7B to 14B at page size 16, built with the paper's own engine and
estimator; `sparrow.json` names the source. Another page size or model is refused by
`Schedule.check_fits`, not converted.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from sparrow_lab.config.schema import ReservedConfig
from sparrow_lab.errors import UserError, nearest
from sparrow_lab.sparsity.schedule import Schedule, is_variant


def preset_names(model: str | None = None) -> list[str]:
    """Names of the presets, by model and then by tau; only those that fit `model` if given."""
    tables = _data()["tables"]
    return [n for n, t in tables.items() if model is None or is_variant(model, t["model"])]


def load_preset(name: str) -> Schedule:
    """Return one of the paper's tables.

    Raises:
        UserError: no preset has this name; names the nearest one.
    """
    data = _data()
    table = data["tables"].get(name)
    if table is None:
        known = list(data["tables"])
        hint = nearest(name, known) or f"; the presets are {', '.join(known)}"
        raise UserError(f"no preset is called '{name}'{hint}", "preset")
    return Schedule(
        page_size=data["page_size"],
        edges=tuple(data["edges"]),
        budgets=tuple(table["budgets"]),
        landmark=data["landmark"],
        score=data["score"],
        dense_layers=data["dense_layers"],
        reserved=ReservedConfig.model_validate(data["reserved"]),
        tau=table["tau"],
        name=name,
        model=table["model"],
    )


@cache
def _data() -> dict[str, Any]:
    text = files(__package__).joinpath("sparrow.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
