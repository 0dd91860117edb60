"""`sparrow-lab cost`: what a schedule costs on given hardware, dense beside sparse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sparrow_lab.errors import UserError

if TYPE_CHECKING:
    from sparrow_analysis.cost import Hardware, ModelShape
    from sparrow_lab.sparsity.schedule import Schedule

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
LONGEST = 10_000_000
"""Tokens of a trajectory at most: more than any model's context, and arrays of it fit in memory."""


def command(
    model: Annotated[str, typer.Option(help="Name, folder, or a config.json.")],
    schedule: Annotated[
        str | None, typer.Option(help="Schedule file or preset, for example qwen3-1.7b-0.86.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST, help="A fixed budget in tokens instead of a schedule."),
    ] = None,
    page_size: Annotated[
        int | None,
        typer.Option(min=1, max=LONGEST, help="Tokens a page; a schedule brings its own."),
    ] = None,
    dense_layers: Annotated[
        int | None,
        typer.Option(min=0, help="First layers that stay dense, with --budget; 2 by default."),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, max=LONGEST, help="Length of a decode step; may be repeated."),
    ] = None,
    prompt: Annotated[
        int, typer.Option(min=1, max=LONGEST, help="Prompt tokens of the trajectory.")
    ] = 200,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=LONGEST, help="Generated tokens; by default up to the longest length."
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences decoded at once.")] = 32,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Of weights and cache.")
    ] = "bfloat16",
    hardware: Annotated[str, typer.Option(help="Profile, or a JSON file of one.")] = "h200",
    any_model: Annotated[
        bool, typer.Option("--any-model", help="Accept a schedule measured on another model.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print numbers instead of a table.")] = (
        False
    ),
) -> None:
    """Predict decode steps and a whole trajectory under a schedule, beside dense ones.

    eFLOPs (FLOPs + intensity x bytes) rank schedules. Times are estimates from a roofline with
    attainable rates and an overhead a layer.
    """
    from sparrow_analysis.cost import load_hardware

    profile = load_hardware(hardware)
    shape = _shape(model)
    plan = _schedule(schedule, budget, page_size, dense_layers)
    plan.check_fits(page_size or plan.page_size, shape.name, any_model=any_model)
    _check_layers(plan, shape, by_option=budget is not None)
    lengths = sorted(set(length or LENGTHS))
    count = tokens if tokens is not None else max(lengths[-1] - prompt, 1)
    report = predict(
        shape, profile, plan, lengths, prompt, count, batch, 2 if dtype == "bfloat16" else 4
    )
    if as_json:
        print(json.dumps(report, indent=1, allow_nan=False))
    else:
        _print(report, shape, profile, plan)


def predict(
    shape: ModelShape,
    hardware: Hardware,
    schedule: Schedule,
    lengths: list[int],
    prompt: int,
    tokens: int,
    batch: int,
    element_bytes: int = 2,
) -> dict[str, Any]:
    """All numbers of the table: one row a length, and the trajectory's.

    eFLOPs are a sequence's and leave weight bytes out, as the paper does; times are a batch's
    and have them in. A trajectory of one token has no decode step: only its prefill counts.
    """
    from sparrow_analysis.cost import (
        largest_batch,
        rollout_seconds,
        scheduled_step_cost,
        step_seconds,
        trajectory_cost,
    )

    plans = {"dense": None, "sparse": schedule}
    size: dict[str, Any] = {"element_bytes": element_bytes}
    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length, "attended": int(schedule.attended_for(length))}
        for name, plan in plans.items():
            bare = scheduled_step_cost(shape, length, plan, batch, read_weights=False, **size)
            cost = scheduled_step_cost(shape, length, plan, batch, **size)
            row[f"{name}_eflops"] = float(bare.total.eflops(hardware.intensity))
            row[f"{name}_s"] = float(step_seconds(cost, shape, hardware, batch))
        rows.append(row)
    whole: dict[str, Any] = {"prompt": prompt, "tokens": tokens}
    for name, plan in plans.items():
        trajectory = trajectory_cost(shape, prompt, tokens, plan, batch, read_weights=False, **size)
        seconds = rollout_seconds(
            shape, hardware, prompt, tokens, plan, sequences=batch, batch=batch, **size
        )
        whole[f"{name}_eflops"] = trajectory.eflops(hardware.intensity)
        whole[f"{name}_s"] = seconds
        whole[f"{name}_attended_mean"] = trajectory.attended_mean if trajectory.steps else None
    return {
        "model": shape.name,
        "hardware": hardware.name,
        "schedule": schedule.name,
        "page_size": schedule.page_size,
        "batch": batch,
        "largest_batch": largest_batch(shape, hardware, prompt + tokens, **size),
        "steps": rows,
        "trajectory": whole,
    }


def _shape(model: str) -> ModelShape:
    """The model's sizes: a file, a model we know, or one that `sparrow_lab.models` can find."""
    from sparrow_analysis.cost import ModelShape, load_shape

    shape = load_shape(model)
    if shape is not None:
        return shape
    from sparrow_lab.models.shape import model_shape

    return ModelShape.from_config(model_shape(model), model, f"--model {model}")


def _schedule(
    schedule: str | None, budget: int | None, page_size: int | None, dense_layers: int | None
) -> Schedule:
    """The schedule that the options name, from a file, a preset or a budget."""
    from sparrow_lab.sparsity.presets import load_preset, preset_names
    from sparrow_lab.sparsity.schedule import Schedule

    if (schedule is None) == (budget is None):
        raise UserError("give either --schedule or --budget", "cost")
    if budget is not None:
        layers = 2 if dense_layers is None else dense_layers
        return Schedule.fixed(budget, page_size or 16, dense_layers=layers)
    assert schedule is not None
    if dense_layers is not None:
        raise UserError("goes with --budget; a schedule brings its own", "--dense-layers")
    if schedule in preset_names() or not (Path(schedule).exists() or schedule.endswith(".json")):
        return load_preset(schedule)
    return Schedule.load(Path(schedule))


def _check_layers(plan: Schedule, shape: ModelShape, by_option: bool) -> None:
    """Refuse dense layers that leave none to be sparse, as a sweep does."""
    if not plan.is_dense and plan.dense_layers >= shape.layers:
        found = f"{plan.dense_layers}" + ("" if by_option else " dense layers")
        raise UserError(
            f"found {found}, but {shape.name} has {shape.layers} layers and at least one has to "
            f"be sparse; allowed: 0 to {shape.layers - 1}",
            "--dense-layers" if by_option else f"schedule {plan.name}",
        )


def _print(report: dict[str, Any], shape: ModelShape, hardware: Hardware, plan: Schedule) -> None:
    from rich.console import Console
    from rich.table import Table

    batch = report["batch"]
    table = Table()
    table.add_column("length", justify="right", no_wrap=True)
    for column in ("KV read", "eFLOPs", "sparse", "ratio", "time", "sparse", "speed-up"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in report["steps"]:
        table.add_row(
            str(row["length"]),
            str(row["attended"]),
            *_pair(row["dense_eflops"], row["sparse_eflops"], ""),
            *_pair(row["dense_s"], row["sparse_s"], "s"),
        )
    whole = report["trajectory"]
    mean = whole["sparse_attended_mean"]
    table.add_section()
    table.add_row(
        "all",
        "-" if mean is None else f"{mean:.0f}",
        *_pair(whole["dense_eflops"], whole["sparse_eflops"], ""),
        *_pair(whole["dense_s"], whole["sparse_s"], "s"),
    )
    console = Console()
    title = f"{shape.name}, {plan.name}, page size {plan.page_size}, {hardware.name}, batch {batch}"
    console.print(title, highlight=False, soft_wrap=True)
    console.print(table)
    rough = " Rough: no more than an order of magnitude." if hardware.rough else ""
    notes = [
        f"length: a decode step there; all: {whole['prompt']} prompt and {whole['tokens']} "
        "generated tokens. KV read: tokens that a sparse layer attends to.",
        "eFLOPs are one sequence's, without the weights; they rank. Times are a batch's, and "
        f"estimates.{rough}",
    ]
    if batch > report["largest_batch"]:
        notes.append(
            f"memory: at this length about {report['largest_batch']} sequences fit, not {batch}; "
            "the times are those of enough memory"
        )
    for note in notes:
        console.print(note, highlight=False, soft_wrap=True)


def _pair(dense: float, sparse: float, unit: str) -> tuple[str, str, str]:
    """Both numbers and their ratio, as the table shows them."""
    return _short(dense, unit), _short(sparse, unit), f"{dense / sparse:.2f}"


def _short(x: float, unit: str) -> str:
    """Three digits and a prefix: 1.29P, 4.10ms. Whole thousands of seconds stay seconds."""
    scales = [(1e-6, "µ"), (1e-3, "m"), (1.0, "")]
    if unit != "s":
        scales = [(1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P")]
    scale, prefix = next((s for s in reversed(scales) if abs(x) >= s[0]), scales[0])
    value = x / scale
    return f"{value:,.0f}{prefix}{unit}" if value >= 100 else f"{value:.3g}{prefix}{unit}"
