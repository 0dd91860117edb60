"""The list of commands: one line each, so that `--help` never imports one of them.

A command module is imported only when its command runs (or its own `--help` is
asked for). It defines `command`, a function with typer annotations, or `app`, a
typer app for a group of commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from sparrow_lab.errors import UserError


class Entry(NamedTuple):
    """Where a command lives (a module under `sparrow_lab.cli`), and its line in `--help`."""

    help: str
    panel: str


RUN, READ, SPARSITY, TOOLS = "Run", "Read", "Schedules and cost", "Tools"

COMMANDS: dict[str, Entry] = {
    "sweep": Entry("Plan an experiment file, show it, submit what is missing.", RUN),
    "status": Entry("Show the state of every point, from files.", RUN),
    "logs": Entry("Print a point's log; a failed one ends with its cause.", RUN),
    "retry": Entry("Run again what failed, and nothing else.", RUN),
    "cancel": Entry("Stop points, all or some.", RUN),
    "rollout": Entry("Generate samples for a file of prompts, sparse or dense.", RUN),
    "sync": Entry("Copy run folders into MLflow.", READ),
    "ui": Entry("Open MLflow on the runs.", READ),
    "report": Entry("Write the report: threshold, curves, Pareto front.", READ),
    "calibrate": Entry("Measure acceptance at many budgets for one model.", SPARSITY),
    "schedule": Entry("Make, show, import or compare schedules.", SPARSITY),
    "cost": Entry("Predict the cost of a schedule on given hardware.", SPARSITY),
    "doctor": Entry("Find what will not work before it is submitted.", TOOLS),
    "models": Entry("Fetch, list or train models.", TOOLS),
    "bench": Entry("Time kernels, the rollout engine and large sweeps.", TOOLS),
}


def load_command(name: str) -> Any:
    """Import the module of command `name` and build its command.

    Raises UserError when the module, or a package that it needs, is not installed.
    """
    module_name = f"sparrow_lab.cli.{name}"
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing == module_name:
            raise UserError("this command is not part of this installation", name) from None
        if missing.split(".")[0].startswith("sparrow_"):
            raise
        raise UserError(
            f"the package '{missing}' is not installed; install sparrow-lab again "
            "with its dependencies",
            name,
        ) from error
    app = getattr(module, "app", None)
    if isinstance(app, typer.Typer):
        built: Any = typer.main.get_group(app)
    else:
        single = typer.Typer(add_completion=False)
        single.command(name)(module.command)
        built = typer.main.get_command(single)
    built.name = name
    return built


class LazyGroup(TyperGroup):
    """A command group that lists stubs and imports a command when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, entry in COMMANDS.items():
            stub = TyperCommand(name=name, help=entry.help, rich_help_panel=entry.panel)
            self.commands.setdefault(name, stub)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that `args` starts with, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        if name in COMMANDS:
            command = load_command(name)
        return name, command, rest
