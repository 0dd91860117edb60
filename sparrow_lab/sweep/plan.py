"""An experiment file's config becomes a plan: every stage of every point, once each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparrow_lab.config.grid import Choice
from sparrow_lab.config.schema import Stage, SweepConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep.canonical import Config, canonical, form
from sparrow_lab.sweep.checks import Resolver
from sparrow_lab.sweep.content import Files
from sparrow_lab.sweep.expand import Places, expand
from sparrow_lab.sweep.identity import calibrate_id, evaluate_id, schedule_id, train_id
from sparrow_lab.sweep.labels import Labels
from sparrow_lab.sweep.search.draw import draws

_BEFORE_TRAINING = ("model", "task", "sparsity", "rollout", "calibrate")

ORDER: tuple[Stage, ...] = ("calibrate", "schedule", "train", "evaluate")


def make_plan(
    config: SweepConfig,
    source_dir: Path,
    proposals: Sequence[Choice] | None = None,
    *,
    include: bool = True,
    files: Files | None = None,
) -> Plan:
    """Plan a sweep; reads files, writes nothing.

    Args:
        config: from `sparrow_lab.config.load.load_sweep`, or built in Python.
        source_dir: the experiment file's folder, where relative paths start.
        proposals: what an adaptive method has proposed so far; None makes the draws of the
            method random, and nothing for the others.
        include: False plans the proposals alone, without the entries of `include`.
        files: hashes known from an earlier plan; a large model is then not read again.

    Returns:
        The plan: points by stage, each after those it needs, each once however many
        combinations share it. Planning again gives the same ids in the same order.

    Raises:
        UserError: a point that cannot run, with the place of the field at fault.
    """
    if proposals is None:
        proposals = draws(config)
    expansion = expand(config, proposals, include)
    planner = _Planner(config, Labels(expansion.swept))
    resolver = Resolver(config.stages, files or Files(source_dir))
    for combination in expansion.points:
        resolved = resolver.resolve(combination)
        planner.add(resolved, combination.places)
    return Plan(
        name=config.name,
        verdict=config.verdict.model_dump(mode="json"),
        points=tuple(p for stage in ORDER for p in planner.points[stage].values()),
    )


class _Planner:
    """Collects the stages of points, by id."""

    def __init__(self, config: SweepConfig, labels: Labels) -> None:
        self.stages = set(config.stages)
        self.labels = labels
        self.points: dict[Stage, dict[str, PlannedPoint]] = {stage: {} for stage in ORDER}
        self.known: dict[tuple[Any, ...], tuple[str, list[Config]]] = {}
        """Ids by stage and identity of sections; the sections are kept so that they live."""

    def add(self, config: Config, places: Places) -> None:
        """Add the stages of one resolved point; what exists already is shared."""
        calibrate: str | None = None
        if self.stages == {"calibrate"} or form(config) == "tau":
            if "calibrate" not in self.stages:
                raise UserError(
                    "a schedule from a tau needs the stage 'calibrate', which is not listed",
                    places.of("sparsity.schedule"),
                )
            calibrate = self._shared("calibrate", config, None)
        if "schedule" not in self.stages:
            return
        schedule = self._shared("schedule", config, calibrate)
        if "train" not in self.stages:
            return
        kept = canonical(config, "train")
        train = self._put("train", train_id(kept, schedule), {"schedule": schedule}, kept)
        if "evaluate" in self.stages:
            self._put("evaluate", evaluate_id(kept, train), {"train": train}, kept)

    def _shared(self, stage: Stage, config: Config, calibrate: str | None) -> str:
        """Add a stage that comes before training, worked out once for equal sections."""
        parts = [config[name] for name in _BEFORE_TRAINING]
        key = (stage, config["threads"], *(id(part) for part in parts))
        if key not in self.known:
            kept = canonical(config, stage)
            if stage == "calibrate":
                made = self._put(stage, calibrate_id(kept), {}, kept)
            else:
                needs = {} if calibrate is None else {"calibrate": calibrate}
                made = self._put(stage, schedule_id(kept, calibrate), needs, kept)
            self.known[key] = (made, parts)
        return self.known[key][0]

    def _put(self, stage: Stage, point_id: str, needs: dict[str, str], config: Config) -> str:
        if point_id not in self.points[stage]:
            label = self.labels.of(config, stage)
            self.points[stage][point_id] = PlannedPoint(point_id, stage, needs, label, config)
        return point_id
