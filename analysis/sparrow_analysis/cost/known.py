"""Shapes of well-known models that ship with the package, so that a cost needs no download."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparrow_analysis.cost.files import read_object
from sparrow_analysis.cost.shape import ModelShape


def known_models() -> list[str]:
    """Names that `load_shape` knows without a file."""
    return list(_data()["models"])


def load_shape(name: str) -> ModelShape | None:
    """The shape of a known model (case and organisation do not matter), or of a config file.

    `name` may be a `config.json` or a folder that holds one. None if it is none of these: the
    caller may know other places to look.

    Raises:
        UserError: the file is not a config that the cost model covers.
    """
    path = Path(name)
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if path.suffix == ".json":
        short = path.resolve().parent.name if path.name == "config.json" else path.stem
        return ModelShape.from_config(read_object(path, "a model's config"), short, str(path))
    data = _data()
    short = name.rsplit("/", 1)[-1].lower()
    own = data["models"].get(short)
    return None if own is None else ModelShape.from_config({**data["common"], **own}, short)


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(
        files(__package__).joinpath("shapes.json").read_text(encoding="utf-8")
    )
    return data
