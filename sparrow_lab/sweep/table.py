"""The table of a sweep: points by stage, what runs, and what went wrong; for rich consoles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparrow_lab.sweep.progress import Progress, spell_time
from sparrow_lab.sweep.select import short_names
from sparrow_lab.sweep.states import STATES, PointState, State

COLOURS: dict[State, str] = {
    "done": "green",
    "running": "cyan",
    "pending": "blue",
    "submitted": "dim",
    "planned": "dim",
    "interrupted": "yellow",
    "held": "yellow",
    "cancelled": "magenta",
    "lost": "red",
    "failed": "red",
}

MOST_RUNNING = 16
MOST_PROBLEMS = 8


def overview(
    name: str,
    states: Mapping[str, PointState],
    running: Mapping[str, Progress],
    left: float | None,
) -> RenderableType:
    """Everything that the live view shows."""
    parts: list[RenderableType] = [heading(name, states, left), by_stage(states)]
    if running:
        parts.append(running_table(states, running))
    bad = [s for s in states.values() if s.state in ("failed", "lost")]
    parts.extend(point_lines(bad[:MOST_PROBLEMS], states))
    if len(bad) > MOST_PROBLEMS:
        parts.append(Text(f"and {len(bad) - MOST_PROBLEMS} more"))
    return Group(*parts)


def heading(name: str, states: Mapping[str, PointState], left: float | None) -> Text:
    """`name: 12 of 40 points done, 2 running, about 3 min left`."""
    counts = Counter(s.state for s in states.values())
    text = Text(f"{name}: {counts['done']} of {len(states)} points done", style="bold")
    for state in STATES[1:]:
        if counts[state]:
            text.append(f", {counts[state]} {state}", style=COLOURS[state])
    if left is not None and counts["running"]:
        text.append(f", about {spell_time(left)} left", style="bold")
    return text


def by_stage(states: Mapping[str, PointState]) -> Table:
    """One row a stage: a bar and the number of points in each state."""
    stages: dict[str, Counter[State]] = {}
    for state in states.values():
        stages.setdefault(state.point.stage, Counter())[state.state] += 1
    shown = [s for s in STATES if any(counts[s] for counts in stages.values())]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("stage")
    table.add_column("", width=20)
    for name in shown:
        table.add_column(name, justify="right", style=COLOURS[name])
    table.add_column("all", justify="right")
    for stage, counts in stages.items():
        total = sum(counts.values())
        bar = ProgressBar(total=total, completed=counts["done"], width=20)
        cells = [str(counts[s]) if counts[s] else "" for s in shown]
        table.add_row(stage, bar, *cells, str(total))
    return table


def running_table(states: Mapping[str, PointState], running: Mapping[str, Progress]) -> Table:
    """One row a running point: progress, p5 of acceptance, last evaluation, time left."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("running", "stage"):
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    table.add_column("", width=16)
    for column in ("step", "p5", "evaluation", "left"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", style="dim")
    names = short_names(s.point for s in states.values())
    for point_id, progress in list(running.items())[:MOST_RUNNING]:
        table.add_row(
            escape(names[point_id]),
            states[point_id].point.stage,
            ProgressBar(total=max(1, progress.total), completed=progress.done, width=16),
            f"{progress.done}/{progress.total}" if progress.total else "",
            number(progress.p05),
            number(progress.evaluation),
            spell_time(progress.left),
            escape(progress.note),
        )
    return table


def point_lines(rows: list[PointState], states: Mapping[str, PointState]) -> list[Text]:
    """One line a point: state, stage, label, id, last evaluation, and why or same as what."""
    if not rows:
        return []
    names = short_names(s.point for s in states.values())
    lines = []
    for state in rows:
        point = state.point
        line = Text(f"{state.state:<11} ", style=COLOURS[state.state])
        line.append(f"{point.stage:<9} {names[point.id]} ({point.id[:8]})", style="default")
        value = ((state.result or {}).get("metrics") or {}).get("evaluate/reward")
        if value is not None:
            line.append(f"  evaluation {number(float(value))}", style="default")
        why = same_text(state, names) or state.reason
        line.append(f": {why}" if why else "", style="default")
        lines.append(line)
    return lines


def same_text(state: PointState, names: Mapping[str, str]) -> str:
    """`same as tau=0.9,seed=0 (1f3a5b7c)`; empty for a point that ran itself."""
    if not state.same_as:
        return ""
    return f"same as {names.get(state.same_as, '')} ({state.same_as[:8]})"


def number(value: float | None) -> str:
    """Three decimals, `nan` and `inf` as they are, empty for None."""
    return "" if value is None else f"{value:.3f}"
