"""The tags of a task's run: what it is, its attempts, why it failed, and a note for people."""

from __future__ import annotations

import getpass
import time
from collections.abc import Mapping, Sequence

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.tracking.params import Names, short
from sparrow_lab.tracking.task import Task, failure_line

SWEEP, KIND, POINT = "sparrow.sweep", "sparrow.kind", "sparrow.point"
FAILURE, ATTEMPTS, ALIAS, NAMES = (
    "sparrow.failure",
    "sparrow.attempts",
    "sparrow.alias_of",
    "sparrow.same_run",
)
FOLDER = "sparrow.folder"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"
SOURCE = {"mlflow.source.name": "sparrow-lab", "mlflow.source.type": "JOB"}
MAX_TEXT = 4000
SHOWN_ATTEMPTS = 20

OPTIONAL = (FAILURE, ALIAS, NAMES)
"""Tags that are removed when they no longer hold."""

STAGES = {
    "calibrate": "Acceptance at many budgets. `curve/...` is drawn over the budget: step = tokens.",
    "schedule": (
        "The schedule and its check on fresh prompts. `schedule/budget` and `..._by_length` are "
        "drawn over the length: step = tokens."
    ),
    "train": "RL on sparse rollouts. Pictures of acceptance by step: Artifacts, `acceptance/`.",
    "evaluate": "The trained policy, decoded densely on held-out prompts.",
}


def task_tags(
    task: Task,
    sweep: str,
    parent: str,
    plan: Mapping[str, PlannedPoint],
    names: Names,
    same: Sequence[str],
) -> dict[str, str]:
    """Every tag of a task but the importer's own state. `same` are its aliases' ids."""
    point = task.point
    tags = {
        SWEEP: sweep,
        KIND: "task",
        POINT: point.id,
        PARENT: parent,
        FOLDER: str(task.folder.path.absolute()),
        ATTEMPTS: str(len(task.attempts)),
        "sparrow.stage": point.stage,
        **SOURCE,
        "mlflow.user": user(),
        NOTE: note(task, plan, names, same),
    }
    tags.update({f"sparrow.needs.{stage}": other for stage, other in point.needs.items()})
    for attempt in task.attempts[-SHOWN_ATTEMPTS:]:
        tags[f"sparrow.attempt.{attempt.number}"] = attempt_line(attempt, task)
    if task.failure:
        tags[FAILURE] = short(task.failure, MAX_TEXT)
    if task.alias_of:
        tags[ALIAS] = task.alias_of
    if same:
        tags[NAMES] = short(", ".join(names(plan[other]) for other in same), MAX_TEXT)
    return tags


def user() -> str:
    """Who imports: MLflow shows it as the owner of the runs."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without an entry for its user
        return "unknown"


def attempt_line(attempt: AttemptFolder, task: Task) -> str:
    """`node3 pid 1234, 2026-01-01 10:00:00 to 10:20:00: interrupted: ...` of one attempt."""
    claim = attempt.read_claim() or {}
    failure = attempt.read_failure()
    who = f"{claim.get('host', '?')} pid {claim.get('pid', '?')}"
    began = claim.get("time")
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(began)) if began else "?"
    if failure:
        state = failure_line(failure)
    elif attempt != task.attempts[-1]:
        state = "ended without a word"
    elif task.result is not None:
        state = "finished"
    else:
        state = "running" if task.live else "the worker vanished"
    return short(f"{who}, since {since}: {state}", MAX_TEXT)


def note(task: Task, plan: Mapping[str, PlannedPoint], names: Names, same: Sequence[str]) -> str:
    """Markdown that MLflow shows above a run."""
    lines = [f"**{names(task.point)}** · point `{task.point.id}`", ""]
    lines.append(STAGES.get(task.point.stage, ""))
    if task.alias_of:
        other = plan.get(task.alias_of)
        name = names(other) if other else task.alias_of
        lines += ["", f"**The same run as {name}** (`{task.alias_of}`): one schedule, one run."]
    if same:
        others = ", ".join(f"{names(plan[other])} (`{other}`)" for other in same)
        lines += ["", f"**The same run also stands for** {others}."]
    if task.failure:
        lines += ["", f"Ended with: `{short(task.failure, 300)}`"]
    return short("\n".join(lines), MAX_TEXT)
