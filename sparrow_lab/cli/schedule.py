"""`sparrow-lab schedule`: make, show, import or compare schedules."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from sparrow_lab.sparsity.calibration import Choice
    from sparrow_lab.sparsity.schedule import Schedule


def command(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Schedule files to show; several are compared.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option(help="Make a schedule from this curve.json; needs --tau.")
    ] = None,
    tau: Annotated[
        list[float] | None, typer.Option(help="The p5 to hold; repeat it to compare levels.")
    ] = None,
    rule: Annotated[
        Literal["estimate", "lower"],
        typer.Option(help="What must reach tau: the estimate of p5, or its interval's lower end."),
    ] = "estimate",
    trajectory: Annotated[
        Literal["own", "dense"] | None,
        typer.Option(help="Rows of the curve to use; own ones by default, if there are any."),
    ] = None,
    preset: Annotated[
        list[str] | None, typer.Option(help="One of the paper's tables, for example qwen3-4b-0.86.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the presets.")] = False,
    page_size: Annotated[
        int | None, typer.Option(min=1, help="Refuse a schedule for another page size.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Refuse a schedule of another model.")] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Accept a schedule measured on another model.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the schedule to this file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the schedule as JSON instead of a table.")
    ] = False,
) -> None:
    """Make a schedule from a calibration curve, or show, export and compare schedules.

    A schedule says how many tokens of KV a decode step attends to, by length.
    """
    from rich.console import Console

    from sparrow_lab.sparsity.presets import load_preset, preset_names
    from sparrow_lab.sparsity.schedule import Schedule

    console = Console()
    if list_:
        for name in preset_names():
            console.print(name, highlight=False)
        return
    if tau and curve is None:
        raise UserError("needs --curve, the curve.json that `calibrate` wrote", "--tau")
    if curve is not None and not tau:
        raise UserError("needs --tau, the p5 to hold", "--curve")
    choices = [_choose(curve, t, rule, trajectory) for t in tau or ()] if curve else []
    schedules = [Schedule.load(f) for f in files or ()]
    schedules += [load_preset(name) for name in preset or ()]
    schedules += [c.schedule for c in choices]
    if not schedules:
        raise UserError("name a schedule file, --preset, or --curve with --tau", "schedule")
    for schedule in schedules:
        schedule.check_fits(page_size or schedule.page_size, model, any_model=any_model)
    if len(schedules) > 1:
        if out is not None or as_json:
            option = "--out" if out is not None else "--json"
            raise UserError(f"takes one schedule, not {len(schedules)}", option)
        _compare(console, schedules)
        return
    (schedule,) = schedules
    if as_json:
        print(json.dumps(schedule.to_json(), indent=1))
    elif choices:
        _show_choice(console, choices[0])
    else:
        _show(console, schedule)
    if out is not None:
        try:
            schedule.save(out)
        except OSError as error:
            raise UserError(f"cannot be written: {error.strerror}", str(out)) from None
        Console(stderr=True).print(f"wrote {out}", soft_wrap=True, highlight=False)


def _choose(path: Path, tau: float, rule: Any, trajectory: Any) -> Choice:
    """The cheapest schedule of a curve file, with the settings it was measured under."""
    from pydantic import ValidationError

    from sparrow_lab.config.schema import SparsityConfig
    from sparrow_lab.sparsity.calibration import Curve, cheapest_schedule
    from sparrow_lab.sparsity.files import read_json

    where = str(path)
    data = read_json(path)
    curve = Curve.from_json(data, trajectory=trajectory, where=where)
    try:
        sparsity = SparsityConfig.model_validate(data["settings"]["sparsity"])
    except (KeyError, TypeError):
        raise UserError("the key 'settings.sparsity' is missing", where) from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in ("settings", "sparsity", *problem["loc"]))
        raise UserError(f"{key}: {problem['msg']}", where) from None
    return cheapest_schedule(
        curve,
        tau,
        rule,
        landmark=sparsity.landmark,
        score=sparsity.score,
        dense_layers=sparsity.dense_layers,
        reserved=sparsity.reserved,
        model=data.get("model"),
    )


def _show(console: Console, schedule: Schedule) -> None:
    """A schedule's steps, and how it was measured."""
    from rich.table import Table

    table = Table()
    for column in ("from length", "budget", "pages"):
        table.add_column(column, justify="right")
    before = None
    for edge, budget in zip(schedule.edges, schedule.budgets, strict=True):
        if budget != before:
            table.add_row(str(edge), _tokens(budget), _pages(schedule, budget))
        before = budget
    _print_table(console, schedule, table)
    measured = schedule.measured
    if measured is not None:
        ceiling = _number(measured.get("ceiling_p05"))
        interval = _interval(measured.get("p05_low"), measured.get("p05_high"))
        console.print(
            f"measured on {measured.get('prompts', '?')} fresh prompts: "
            f"p5 {_number(measured.get('p05'))} {interval}, ceiling {ceiling}",
            highlight=False,
        )


def _show_choice(console: Console, choice: Choice) -> None:
    """Each bin of the curve with what it needs, and what the reader has to know about it."""
    from rich.table import Table

    schedule = choice.schedule
    table = Table()
    for column in ("from length", "needs", "budget", "pages", "p5", "interval", ""):
        table.add_column(column, justify="left" if column in ("interval", "") else "right")
    for b in choice.bins:
        table.add_row(
            str(b.start),
            "-" if b.needed is None else _tokens(b.needed),
            _tokens(b.budget),
            _pages(schedule, b.budget),
            _number(b.value),
            _interval(b.low, b.high),
            "" if b.reason == "reached" else b.reason,
        )
    _print_table(console, schedule, table)
    notes = [
        f"nothing was measured from length {choice.measured_to} on; the last budget is carried on"
    ]
    if choice.unreached:
        notes.append(f"no budget reaches tau from length {choice.unreached[0]}: full attention")
    if choice.undecided:
        notes.append(
            "too few prompts at the budgets that may reach tau, so the next larger one is taken, "
            f"from length {choice.undecided[0]}"
        )
    for note in notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)


def _compare(console: Console, schedules: list[Schedule]) -> None:
    """Budgets side by side; the same digest means the same rollouts."""
    from rich.table import Table

    table = Table()
    table.add_column("from length", justify="right")
    for schedule in schedules:
        table.add_column(schedule.name or "?", justify="right")
    before: list[int] = []
    for edge in sorted({e for s in schedules for e in s.edges}):
        budgets = [s.budget_at(edge) for s in schedules]
        if budgets != before:
            table.add_row(str(edge), *(_tokens(b) for b in budgets))
        before = budgets
    table.add_section()
    table.add_row("page size", *("any" if s.is_dense else str(s.page_size) for s in schedules))
    table.add_row("digest", *(s.digest[:8] for s in schedules))
    console.print(table)
    if len({s.digest for s in schedules}) < len(schedules):
        console.print(
            "note: the same digest means the same choice of pages: one run, several names"
        )


def _print_table(console: Console, schedule: Schedule, table: Table) -> None:
    """The table between a line that says what it is and one with the settings."""
    model = f", {schedule.model}" if schedule.model else ""
    first, last = schedule.reserved_pages()
    title = f"{schedule.name or 'schedule'}{model}, page size {schedule.page_size}"
    settings = (
        f"always kept: {first} first and {last} last pages; dense layers: {schedule.dense_layers}; "
        f"landmark {schedule.landmark}, score {schedule.score}; digest {schedule.digest[:12]}"
    )
    console.print(title, highlight=False, soft_wrap=True)
    console.print(table)
    console.print(settings, highlight=False, soft_wrap=True)


def _tokens(budget: int) -> str:
    from sparrow_lab.sparsity.schedule import DENSE

    return "all" if budget >= DENSE else str(budget)


def _pages(schedule: Schedule, budget: int) -> str:
    from sparrow_lab.sparsity.schedule import DENSE

    return "all" if budget >= DENSE else str(budget // schedule.page_size)


def _number(x: float | None) -> str:
    return "-" if x is None or math.isnan(x) else f"{x:.3f}"


def _interval(low: float | None, high: float | None) -> str:
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return "-"
    return f"[{low:.3f}, {high:.3f}]"
