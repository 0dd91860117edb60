"""Runs that turn out to be the same run are run once.

Two levels of tau can come out as one schedule; the training runs then agree in every
number. Each train or evaluate point has a key made of what decides its result; the
first point to claim a key runs, the others become its aliases.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from sparrow_lab.config.later import without_later
from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint

LEFT_OUT = ("sparsity", "calibrate")
"""Parts of a config that act on training only through the schedule, whose digest enters."""


def effective_key(
    sweep: SweepFolder, point: PlannedPoint, digests: dict[str, str | None] | None = None
) -> str | None:
    """What decides the result of `point`, as a hash; None where identity is not shared.

    Train: the config with the schedule's digest in place of its source. Evaluate: the
    training run that really happened, and the number of prompts. None too when what it
    needs is not done, or its schedule carries no digest.

    Args:
        digests: of schedules by id, for a caller that asks of many points: filled as they are read.
    """
    if point.stage == "train" and "schedule" in point.needs:
        needed, known = point.needs["schedule"], {} if digests is None else digests
        if needed not in known:
            known[needed] = _digest(sweep, needed)
        digest = known[needed]
        if digest is None:
            return None
        return training_key(point.config, digest)
    if point.stage == "evaluate" and "train" in point.needs:
        trained = sweep.point(point.needs["train"])
        if trained.read_result() is None:
            return None
        prompts = point.config.get("train", {}).get("evaluate_prompts")
        return _hash({"stage": "evaluate", "train": trained.followed().id, "prompts": prompts})
    return None


def _digest(sweep: SweepFolder, schedule_id: str) -> str | None:
    schedule = read_json(sweep.point(schedule_id).followed().path / "schedule.json")
    return schedule.get("digest") if isinstance(schedule, dict) else None


def training_key(config: Mapping[str, Any], digest: str) -> str:
    """What decides a training run, from its config and the digest of its schedule."""
    rest = without_later({k: v for k, v in config.items() if k not in LEFT_OUT})
    return _hash({"stage": "train", "schedule": digest, "config": rest})


def owner_of(sweep: SweepFolder, point: PlannedPoint) -> str:
    """Claim the run of `point`; return the id of the point that runs it, its own if it may."""
    key = effective_key(sweep, point)
    return point.id if key is None else sweep.claim_effective(key, point.id)


def take_over(sweep: SweepFolder, point: PlannedPoint) -> None:
    """Make `point` the owner of its run: the former owner will never run it."""
    key = effective_key(sweep, point)
    if key is not None:
        sweep.take_effective(key, point.id)


def write_alias(sweep: SweepFolder, point: PlannedPoint, owner: str) -> bool:
    """Finish `point` at once as an alias of `owner`; False unless `owner` is done.

    The metrics are the owner's; `time` and `seconds` are empty, nothing was run.
    """
    result = sweep.point(owner).read_result()
    if result is None or owner == point.id:
        return False
    now = time.time()
    alias: dict[str, Any] = {
        **result,
        "stage": point.stage,
        "attempt": 0,
        "started": now,
        "finished": now,
        "seconds": 0.0,
        "time": {},
        "alias_of": result.get("alias_of") or owner,
    }
    if "schedule_name" in alias and "tau" in point.label:
        alias["schedule_name"] = _schedule_name(sweep, point) or alias["schedule_name"]
    folder = sweep.point(point.id)
    folder.write_point(point)
    folder.write_result(alias)
    return True


def _schedule_name(sweep: SweepFolder, point: PlannedPoint) -> str | None:
    """The name of the point's own schedule ("tau=0.86"), which an alias keeps."""
    if "schedule" not in point.needs:
        return None
    schedule = read_json(sweep.point(point.needs["schedule"]).followed().path / "schedule.json")
    return schedule.get("name") if isinstance(schedule, dict) else None


def _hash(parts: dict[str, Any]) -> str:
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
