"""Saved views of an experiment for MLflow's page, and the links to them.

MLflow's table folds the tasks of a sweep under one row, and then draws no chart of them. A
saved view, which MLflow keeps as a tag of the experiment, lists the training runs flat, by
tau, with the columns that matter. A page that does not know the tag shows its plain table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

PREFIX = "mlflow.sharedViewState."
KIND = {"mlflow.experimentKind": "custom_model_development"}
"""Tells MLflow's page that this is no GenAI experiment."""

COLUMNS = {
    "train": ("evaluate/reward", "acceptance/p05", "detector/collapsed"),
    "schedule": ("acceptance/p05", "acceptance/mean"),
    "evaluate": ("evaluate/reward", "evaluate/length_mean", "acceptance/p05"),
}
LABEL = ("model", "page_size", "tau", "seed")


def view(stage: str | None) -> dict[str, Any]:
    """The runs of a stage by tau; None lists all tasks."""
    of_stage = f"params.stage = '{stage}'" if stage else "tags.`sparrow.kind` = 'task'"
    metrics = COLUMNS.get(stage or "train", ())
    params = LABEL if stage else ("stage", *LABEL)
    columns = ["attributes.`Duration`"]
    columns += [f"metrics.`{name}`" for name in metrics]
    columns += [f"params.`{name}`" for name in params]
    return {
        "searchFilter": of_stage,
        "orderByKey": "params.`tau`" if stage else "params.`stage`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": columns,
    }


def experiment_tags() -> dict[str, str]:
    """Tags of every experiment: its kind and its saved views."""
    views = {stage: view(stage) for stage in COLUMNS} | {"tasks": view(None)}
    return KIND | {PREFIX + name: json.dumps(state) for name, state in views.items()}


def page(experiment_id: str, stages: Sequence[str], charts: bool = False) -> str:
    """Path of the experiment on MLflow's page: the training runs if there are any, else all."""
    name = "train" if "train" in stages else "tasks"
    path = f"/#/experiments/{experiment_id}/runs?viewStateShareKey={name}"
    return path + ("&compareRunsMode=CHART" if charts else "")
