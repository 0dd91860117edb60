"""Ids: a hash over what decides a result, the same today and after an upgrade.

An id is the first 16 hex digits (64 bits) of SHA-256 over canonical JSON: sorted keys,
no spaces, floats by their shortest exact form. Paths never enter: a file counts by its
content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparrow_lab.config.later import without, without_later
from sparrow_lab.config.schema import SCHEMA_VERSION, Stage
from sparrow_lab.sweep.canonical import Config, form, ignored

DIGITS = 16

_BEFORE_TRAINING = ("model", "task", "sparsity", "rollout", "calibrate", "threads")

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value; raises ValueError for NaN and infinity."""
    text = _ENCODER.encode(value)
    return _ENCODER.encode(_no_negative_zero(value)) if "-0.0" in text else text


def digest(value: Any) -> str:
    """Return the id of a value."""
    return hashlib.sha256(canonical_json(value).encode("ascii")).hexdigest()[:DIGITS]


def calibrate_id(config: Config) -> str:
    """Return the id of an acceptance curve; `config` is canonical for `calibrate`."""
    sections = _sections(config, "calibrate", *_BEFORE_TRAINING)
    return _id("calibrate", **sections, seed=0)


def schedule_id(config: Config, calibrate: str | None) -> str:
    """Return the id of a schedule; `config` is canonical for `schedule`.

    Args:
        calibrate: the id of its curve, for a schedule made from a tau.
    """
    source = _schedule_source(config)
    if form(config) == "tau":
        rule = config["calibrate"]["rule"]
        return _id("schedule", source=source, calibrate=calibrate, rule=rule)
    return _id("schedule", source=source, **_sections(config, "schedule", *_BEFORE_TRAINING))


def train_id(config: Config, schedule: str) -> str:
    """Return the id of a training run; `config` is canonical for `train`.

    Args:
        schedule: the id of the point that makes its schedule.
    """
    names = ("model", "task", "sparsity", "rollout", "train", "seed", "threads")
    return _id("train", schedule=schedule, **_sections(config, "train", *names))


def evaluate_id(config: Config, train: str) -> str:
    """Return the id of the evaluation of training run `train`."""
    return _id("evaluate", train=train, evaluate_prompts=config["train"]["evaluate_prompts"])


def _id(stage: Stage, **fields: Any) -> str:
    return digest({"schema": SCHEMA_VERSION, "stage": stage, **fields})


def _sections(config: Config, stage: Stage, *names: str) -> Config:
    """Return sections as they enter a hash.

    Contents stand for paths. What the stage ignores is left out rather than hashed at its
    default, so that a new default of such a field changes no id.
    """
    sections = {name: config[name] for name in names}
    if config["task"]["sha256"] is not None:
        sections["task"] = {**sections["task"], "dataset": None}
    if config["model"]["fingerprint"] is not None:
        sections["model"] = {**sections["model"], "name": None}
    if "sparsity" in sections:
        sections["sparsity"] = {**sections["sparsity"], "schedule": _schedule_source(config)}
    for path in ignored(config, stage):
        sections = without(sections, path.split("."))
    return without_later(sections)


def _schedule_source(config: Config) -> Mapping[str, Any]:
    schedule: Mapping[str, Any] = config["sparsity"]["schedule"]
    return {"file": schedule["sha256"]} if "file" in schedule else schedule


def _no_negative_zero(value: Any) -> Any:
    """Write -0.0 as 0.0: they are equal, and no computation here tells them apart."""
    if isinstance(value, dict):
        return {key: _no_negative_zero(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_no_negative_zero(item) for item in value]
    return 0.0 if isinstance(value, float) and value == 0 else value
