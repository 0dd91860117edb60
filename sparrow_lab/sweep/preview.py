"""What a sweep would run, before it runs: `sparrow-lab sweep --dry-run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep.estimate import Estimator

NEW = "new"
ROWS = 40


def render(
    plan: Plan,
    states: Mapping[str, str] | None = None,
    *,
    hardware: str | None = None,
    rows: int = ROWS,
) -> RenderableType:
    """Show a plan by stage and by point, for `rich.console.Console.print`.

    Args:
        states: state of each point that exists already (`done`, `failed`, ...), by id;
            points that are missing there are new.
        hardware: profile for the estimate; None is the CPU.
        rows: most points shown of one stage; 0 shows all.
    """
    known = states or {}
    estimator = Estimator(hardware)
    seconds = {
        point.id: estimator.seconds(point) for point in plan.points if known.get(point.id) != "done"
    }
    stages = list(dict.fromkeys(point.stage for point in plan.points))
    by_stage = {s: [p for p in plan.points if p.stage == s] for s in stages}
    return Group(
        Text(f"{plan.name}: {_counted(len(plan.points), 'point')}", style="bold"),
        _stage_table(by_stage, known, seconds),
        *(_point_table(stage, points, known, rows) for stage, points in by_stage.items()),
        Text(_footnote(estimator, seconds), style="dim"),
    )


def _stage_table(
    by_stage: Mapping[str, Sequence[PlannedPoint]],
    states: Mapping[str, str],
    seconds: Mapping[str, float | None],
) -> Table:
    """One line a stage: how many points, how many done, and the time of the rest."""
    table = Table(box=None, pad_edge=False)
    for column in ("stage", "points", "done", "to run", "about"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, points in by_stage.items():
        done = sum(states.get(p.id) == "done" for p in points)
        times = [seconds[p.id] for p in points if p.id in seconds]
        table.add_row(stage, str(len(points)), str(done), str(len(points) - done), _total(times))
    everything = [p for points in by_stage.values() for p in points]
    left = [seconds[p.id] for p in everything if p.id in seconds]
    done = len(everything) - len(left)
    table.add_row(
        "all", str(len(everything)), str(done), str(len(left)), _total(left), style="bold"
    )
    return table


def _point_table(
    stage: str, points: Sequence[PlannedPoint], states: Mapping[str, str], rows: int
) -> RenderableType:
    """One line a point: id, label, state."""
    shown = points if rows == 0 or len(points) <= rows else points[:rows]
    labels = sorted((point.label for point in points), key=len, reverse=True)
    names = list(dict.fromkeys(name for label in labels for name in label))
    table = Table(title=stage, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("id", *names, "state"):
        table.add_column(column, no_wrap=column == "id")
    for point in shown:
        cells = [_cell(point.label.get(name, "")) for name in names]
        state = states.get(point.id, NEW)
        table.add_row(point.id, *cells, state, style="dim" if state == "done" else None)
    if len(shown) == len(points):
        return table
    return Group(table, Text(f"... and {len(points) - len(shown)} more", style="dim"))


def _footnote(estimator: Estimator, seconds: Mapping[str, float | None]) -> str:
    """Say what the estimate is and is not."""
    if not seconds:
        return "Everything is done."
    if not estimator.used:
        return "No estimate: the shape of the model is not known here (fetch it, or name a folder)."
    unknown = sum(s is None for s in seconds.values())
    missing = f" {_counted(unknown, 'point')} of unknown shape not counted." if unknown else ""
    return (
        f"Time of one worker on {' and '.join(sorted(estimator.used))}, an estimate of the order: "
        "answers at full length, schedules that are not made yet taken as dense." + missing
    )


def _total(times: Sequence[float | None]) -> str:
    known = [t for t in times if t is not None]
    if not known:
        return "-" if not times else "?"
    return duration(sum(known)) + ("" if len(known) == len(times) else " + ?")


def duration(seconds: float) -> str:
    """Write a time to two figures or so: `40 s`, `12 min`, `3.5 h`, `9.1 d`."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "< 1 s"


def _cell(value: object) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
