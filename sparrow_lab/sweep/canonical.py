"""What each stage of a point depends on, and nothing else.

A stage's config keeps the fields that decide its result; the others have their
defaults. So two points that differ only in what a stage never reads share it: one
curve for all taus and seeds, one dense run for all page sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sparrow_lab.config.schema import PointConfig, Stage

Config = dict[str, Any]

_DENSE_IGNORES = (
    "sparsity.page_size",
    "sparsity.landmark",
    "sparsity.score",
    "sparsity.dense_layers",
    "sparsity.reserved",
)
_CHOICE = (
    "calibrate.budgets",
    "calibrate.ladder",
    "calibrate.rule",
    "calibrate.trajectories",
)
"""How a schedule is chosen from a curve; without a tau there is no choice."""

_MEASURED = ("seed", "train")
"""Calibration and schedules come before training and have prompts and seeds of their own."""


def form(config: Mapping[str, Any]) -> str:
    """Return which of the five forms a point's schedule has: dense, tau, budget, file, preset."""
    schedule = config["sparsity"]["schedule"]
    return next(k for k in ("dense", "tau", "budget", "file", "preset") if k in schedule)


def ignored(config: Mapping[str, Any], stage: Stage) -> tuple[str, ...]:
    """Return the dotted paths that cannot change the result of a stage of this point."""
    from sparrow_lab.models.tiny import TINY

    paths: tuple[str, ...] = ()
    if config["model"]["name"] not in TINY:
        paths += ("model.warm_start",)
    if config["calibrate"]["estimator"] == "exact":
        paths += ("calibrate.top_k",)
    if config["calibrate"]["budgets"]:
        paths += ("calibrate.ladder",)
    if stage == "calibrate":
        return (*paths, "sparsity.schedule", "calibrate.rule", *_MEASURED)
    kind = form(config)
    if kind != "tau":
        paths += _CHOICE
    if kind == "dense":
        paths += _DENSE_IGNORES
    return (*paths, *_MEASURED) if stage == "schedule" else paths


def canonical(config: Mapping[str, Any], stage: Stage) -> Config:
    """Return the config of a stage: a copy in which ignored fields have their defaults.

    Args:
        config: a `PointConfig` in JSON types, all fields present.
    """
    kept: Config = dict(config)
    kept["calibrate"] = dict(kept["calibrate"])
    for key in ("budgets", "trajectories"):  # sets, whose order is the writer's taste
        kept["calibrate"][key] = sorted(set(kept["calibrate"][key]), reverse=key != "budgets")
    for path in ignored(config, stage):
        section, _, key = path.partition(".")
        default = defaults()[section]
        kept[section] = {**kept[section], key: default[key]} if key else default
    return kept


@cache
def defaults() -> Config:
    """Return the default of every field, in JSON types. Do not change it."""
    return PointConfig().model_dump(mode="json")
