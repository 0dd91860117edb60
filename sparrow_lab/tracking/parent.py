"""The run that stands for a whole sweep, and whether the sweep has ended. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.tracking.params import Names, short
from sparrow_lab.tracking.tags import FOLDER, KIND, NOTE, SOURCE, SWEEP, user
from sparrow_lab.tracking.task import Status, Task

SHOWN_FAILURES = 20


def has_ended(tasks: Sequence[Task]) -> bool:
    """Whether nothing runs and nothing is left that could: done, failed, killed, or held by one.

    A task interrupted by a signal or not begun yet can still go on, unless one that it needs
    has failed. Needs come before what needs them.
    """
    stuck: set[str] = set()
    for task in tasks:
        held = any(other in stuck for other in task.point.needs.values())
        if task.live:
            return False
        if task.status == "FAILED" or task.cancelled or (held and task.status != "FINISHED"):
            stuck.add(task.point.id)
        elif task.status != "FINISHED":
            return False
    return True


def parent_status(tasks: Sequence[Task]) -> tuple[Status, float | None]:
    """(status, end in seconds since 1970 or None) of the sweep's run."""
    states = {task.status for task in tasks}
    if not has_ended(tasks):
        # Interrupted and nothing runs: the sweep was stopped and can be gone on with.
        stopped = "KILLED" in states and "RUNNING" not in states
        return ("KILLED" if stopped else "RUNNING"), None
    ends = [end for task in tasks if (end := task.ended) is not None]
    ended = max(ends, default=None)
    if "FAILED" in states:
        return "FAILED", ended
    return ("KILLED" if "KILLED" in states else "FINISHED"), ended


def parent_tags(sweep: SweepFolder, plan: Plan, tasks: Sequence[Task]) -> dict[str, str]:
    """Tags of the sweep's run; `tasks` may be empty before the first look."""
    counts = Counter(task.status for task in tasks)
    return {
        SWEEP: sweep.name,
        KIND: "sweep",
        FOLDER: str(sweep.path.absolute()),
        "sparrow.done": f"{counts['FINISHED']} of {len(plan.points)}",
        "sparrow.failed": str(counts["FAILED"]),
        **SOURCE,
        "mlflow.user": user(),
        NOTE: parent_note(plan, tasks),
    }


def parent_note(plan: Plan, tasks: Sequence[Task]) -> str:
    """Markdown: how many tasks stand how, what failed, and a table by stage."""
    columns: list[Status] = ["FINISHED", "RUNNING", "FAILED", "KILLED", "SCHEDULED"]
    totals = Counter(task.status for task in tasks)
    said = ", ".join(f"{totals[status]} {status.lower()}" for status in columns if totals[status])
    lines = [f"**Sweep {plan.name}**: {said or 'nothing begun'}", ""]
    names = Names(plan.points)
    failed = [task for task in tasks if task.status == "FAILED"]
    lines += [f"- {names(t.point)}: `{short(t.failure, 120)}`" for t in failed[:SHOWN_FAILURES]]
    if len(failed) > SHOWN_FAILURES:
        lines.append(f"- and {len(failed) - SHOWN_FAILURES} more")
    lines += ["", "| stage | " + " | ".join(columns).lower() + " |"]
    lines.append("| --- |" + " --- |" * len(columns))
    counts = Counter((task.point.stage, task.status) for task in tasks)
    for stage in dict.fromkeys(point.stage for point in plan.points):
        cells = " | ".join(str(counts[stage, status] or "") for status in columns)
        lines.append(f"| {stage} | {cells} |")
    return short("\n".join(lines), 6000)
