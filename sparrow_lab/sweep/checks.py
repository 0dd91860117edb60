"""What can be known to fail before anything runs, checked for every point.

Each rule needs no torch and no network. Files are found here, and their hashes put into
the point, so that a later edit of a file is another point and shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from sparrow_lab.config.grid import as_node
from sparrow_lab.config.messages import from_validation
from sparrow_lab.config.schema import PointConfig, ReservedConfig, TaskConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sweep.canonical import Config, form
from sparrow_lab.sweep.content import Files
from sparrow_lab.sweep.expand import Combination

if TYPE_CHECKING:
    from sparrow_lab.tasks.jsonl import JsonlParams

_CHECKED = ("model", "task", "sparsity", "rollout", "calibrate")

Where = Callable[..., str]


class Resolver:
    """Checks the points of one sweep; points that agree in what is checked are checked once."""

    def __init__(self, stages: Sequence[str], files: Files) -> None:
        self.stages = set(stages)
        self.files = files
        self._known: dict[tuple[int, ...], tuple[Combination, Config]] = {}

    def resolve(self, combination: Combination) -> Config:
        """Return the config of a point, with its files found and hashed.

        Raises:
            UserError: the point cannot run; the place is that of the field at fault.
        """
        config = combination.config
        # Equal sections are one object (see `expand`), kept alive by the table.
        key = tuple(id(config[name]) for name in _CHECKED)
        if key not in self._known:
            self._known[key] = (combination, self._check(combination))
        return {**config, **self._known[key][1]}

    def _check(self, combination: Combination) -> Config:
        """Return the sections that were checked, files resolved."""
        config, where = dict(combination.config), combination.places.of
        config["model"] = _model(config, self.files, where)
        config["task"] = _task(config, self.files, where)
        _rollout(config, where)
        calibrates = self.stages == {"calibrate"}
        kind = form(config)
        if calibrates or kind != "dense":
            _dense_layers(config, where)
        if calibrates or kind == "tau":
            _calibration(config, where)
        if not calibrates:
            config["sparsity"] = _schedule(config, kind, self.files, where)
        if calibrates or kind != "dense":
            _something_sparse(config, where)
        return {name: config[name] for name in _CHECKED}


def _model(config: Config, files: Files, where: Where) -> Config:
    from sparrow_lab.models.folder import check_folder
    from sparrow_lab.models.shape import find_folder
    from sparrow_lab.models.tiny import TINY, asset_folder

    model: Config = dict(config["model"])
    name, place = model["name"], where("model.name")
    if name in TINY:
        expected = TINY[name].task
        if config["task"]["name"] != expected:
            raise UserError(
                f"{name} was made for the task '{expected}', but the task is "
                f"'{config['task']['name']}'",
                where("task.name"),
            )
        try:
            asset_folder(name, model["warm_start"])
        except UserError as error:
            raise UserError(error.message, where("model.warm_start", "model.name")) from None
        folder = None
    else:
        folder = files.find(name)
        if folder is None:
            try:
                folder = find_folder(name)
            except UserError as error:
                raise UserError(error.message, place) from None
    if folder is not None:
        if not (folder / "config.json").is_file():
            raise UserError(f"'{name}' is no model folder: it has no config.json", place)
        folder = folder.resolve()
        files.check(folder, check_folder, place)
        pinned = files.hash(folder, model["fingerprint"], place)
        return {**model, "name": str(folder), "fingerprint": pinned}
    if model["fingerprint"] is not None:
        raise UserError(f"a fingerprint belongs to a local folder; '{name}' is none", place)
    return model


def _task(config: Config, files: Files, where: Where) -> Config:
    from sparrow_lab.tasks.jsonl import check_lines

    task: Config = dict(config["task"])
    name, dataset, place = task["name"], task["dataset"], where("task.dataset")
    needs = name in {"reasoning_gym", "jsonl"}
    if needs and dataset is None:
        raise UserError(f"the task {name} needs a 'dataset'", where("task.name"))
    if not needs and dataset is not None:
        raise UserError(f"the task {name} makes its own prompts and takes no 'dataset'", place)
    if name == "reasoning_gym" and find_spec("reasoning_gym") is None:
        raise UserError(
            "the task reasoning_gym needs its package: pip install -e '.[gym]' (a C compiler and "
            "Python's headers are needed)",
            where("task.name"),
        )
    if name == "jsonl":
        path = files.require(dataset, "data file", place)
        params = _jsonl_params(task, where)
        files.check(path, partial(check_lines, params=params), place)
        return {**task, "dataset": str(path), "sha256": files.hash(path, task["sha256"], place)}
    if task["sha256"] is not None:
        text = f"'sha256' belongs to a jsonl file; the task is {name}"
        raise UserError(text, where("task.sha256"))
    return task if needs else _built_in(task, where)


def _jsonl_params(task: Config, where: Where) -> JsonlParams:
    from sparrow_lab.tasks.jsonl import JsonlParams

    try:
        return JsonlParams.model_validate(task["params"])
    except ValidationError as problem:
        node = as_node(task["params"], "task.params")
        error = from_validation(problem, node, JsonlParams, path=("task", "params"))
        raise UserError(error.message, where(error.where)) from None


def _built_in(task: Config, where: Where) -> Config:
    """Check a built-in task's own options, and write its defaults out.

    A default that a later version changes then makes another point, as it should.
    """
    from sparrow_lab.tasks import permutation_walk as walk
    from sparrow_lab.tasks import pointer_chase as chase

    kind: type[chase.PointerChase] | type[walk.PermutationWalk] = chase.PointerChase
    options: type[BaseModel] = chase.PointerChaseParams
    if task["name"] == "permutation_walk":
        kind, options = walk.PermutationWalk, walk.PermutationWalkParams
    try:
        options.model_validate(task["params"], strict=True)
        made = kind(TaskConfig.model_validate(task))
    except ValidationError as problem:
        node = as_node(task["params"], "task.params")
        error = from_validation(problem, node, options, path=("task", "params"))
        raise UserError(error.message, where(error.where)) from None
    except UserError as error:
        path = error.where or "task.params"
        raise UserError(f"{path}: {error.message}", where(path)) from None
    params = made.params.model_dump(mode="json")
    return {**task, "params": params, "max_new_tokens": made.max_new_tokens}


def _rollout(config: Config, where: Where) -> None:
    if config["rollout"]["temperature"] == 0:
        raise UserError(
            "rollout.temperature: found 0 (greedy), where acceptance and training are not "
            "defined; allowed: a number above 0",
            where("rollout.temperature"),
        )


def _dense_layers(config: Config, where: Where) -> None:
    """Refuse dense layers that leave none to be sparse, where the model's shape is known."""
    from sparrow_lab.sweep.estimate import model_shape

    dense, shape = config["sparsity"]["dense_layers"], model_shape(config["model"]["name"])
    if shape is not None and dense >= shape.layers:
        raise UserError(
            f"sparsity.dense_layers: found {dense}, but {config['model']['name']} has "
            f"{shape.layers} layers and at least one has to be sparse; allowed: 0 to "
            f"{shape.layers - 1}",
            where("sparsity.dense_layers", "model.name"),
        )


def _something_sparse(config: Config, where: Where) -> None:
    """Refuse reserved pages that hold every context of a built-in task: all would be dense."""
    from sparrow_lab.sparsity.schedule import reserved_pages
    from sparrow_lab.sweep.estimate import task_lengths

    task = TaskConfig.model_validate(config["task"])
    if task.name not in {"pointer_chase", "permutation_walk"}:
        return
    lengths, size = task_lengths(task), config["sparsity"]["page_size"]
    longest = lengths.prompt + lengths.answer
    reserved = ReservedConfig.model_validate(config["sparsity"]["reserved"])
    kept = sum(reserved_pages(reserved, size)) * size
    if kept >= longest:
        raise UserError(
            f"sparsity.page_size: found {size}, whose reserved pages hold {kept} tokens, but the "
            f"longest context of this task has {longest}: nothing would be sparse; allowed: a "
            "smaller page, or fewer reserved tokens",
            where("sparsity.page_size", "sparsity.reserved"),
        )


def _calibration(config: Config, where: Where) -> None:
    calibrate = config["calibrate"]
    if calibrate["min_prompts"] > calibrate["prompts"]:
        raise UserError(
            f"calibrate.min_prompts is {calibrate['min_prompts']}, but there are only "
            f"{calibrate['prompts']} prompts: every length bin would be left out",
            where("calibrate.min_prompts"),
        )
    if calibrate["rule"] == "lower" and calibrate["bootstrap"] == 0:
        raise UserError(
            "calibrate.rule 'lower' needs intervals: set calibrate.bootstrap above 0",
            where("calibrate.rule"),
        )
    for budget in calibrate["budgets"]:
        _budget(config, budget, "calibrate.budgets", where)


def _budget(config: Config, budget: int, path: str, where: Where) -> None:
    """Refuse a budget that, rounded up to pages, does not hold the reserved ones."""
    from sparrow_lab.sparsity.schedule import reserved_pages

    size = config["sparsity"]["page_size"]
    reserved = ReservedConfig.model_validate(config["sparsity"]["reserved"])
    pages = sum(reserved_pages(reserved, size))
    if -(-budget // size) < pages:
        raise UserError(
            f"{path}: found {budget}, but at page size {size} the {pages} reserved pages alone "
            f"hold {pages * size} tokens; allowed: at least {pages * size}, or a smaller page",
            where(path, "sparsity.page_size"),
        )


def _schedule(config: Config, kind: str, files: Files, where: Where) -> Config:
    """Refuse a schedule made for another page size, model or setting; return the section."""
    from sparrow_lab.sparsity.presets import load_preset
    from sparrow_lab.sparsity.schedule import Schedule

    section: Config = config["sparsity"]
    source, place = section["schedule"], where("sparsity.schedule")
    if kind == "budget":
        _budget(config, source["budget"], "sparsity.schedule.budget", where)
    if kind not in {"file", "preset"}:
        return section
    if kind == "file":
        path = files.require(source["file"], "schedule file", place)
        pinned = files.hash(path, source["sha256"], place)
        section = {**section, "schedule": {"file": str(path), "sha256": pinned}}
    sparsity = PointConfig.model_validate(config).sparsity
    try:
        made = load_preset(source["preset"]) if kind == "preset" else Schedule.load(path)
        made.check_fits(
            sparsity.page_size,
            config["model"]["name"],
            landmark=sparsity.landmark,
            score=sparsity.score,
            dense_layers=sparsity.dense_layers,
            reserved=sparsity.reserved,
        )
    except UserError as error:
        raise UserError(str(error), place) from None
    return section
