"""`sparrow-lab bench`: speed, as ratios against a peer measured in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow_lab.errors import UserError, nearest

if TYPE_CHECKING:
    from rich.table import Table

    from sparrow_kernels.bench import Row

app = typer.Typer(no_args_is_help=True, help="Measure speed against a peer in one run.")


@app.callback()
def group() -> None:
    """Measure speed against a peer in one run."""


@app.command("tiny")
def tiny(
    model: Annotated[str, typer.Option(help="A built-in tiny model.")] = "tiny-s",
    sequences: Annotated[int, typer.Option(min=1)] = 64,
    new_tokens: Annotated[int, typer.Option(min=1, help="Generated tokens, fixed.")] = 180,
    page_size: Annotated[int, typer.Option(min=1)] = 8,
    budget: Annotated[int, typer.Option(min=1, help="Tokens of KV, all kept pages.")] = 56,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Rollout of a tiny model on the CPU: transformers' generate, our dense, our sparse."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from sparrow_lab.rollout.bench import bench_tiny

    torch.set_num_threads(threads)
    rows = bench_tiny(model, sequences, new_tokens, page_size, budget, repeats)
    peer, dense, _ = rows
    table = Table(title=f"{model}, {sequences} sequences, {new_tokens} tokens, median of {repeats}")
    for column in ("", "s", "tokens/s", "ms a step", "speed / transformers", "time / our dense"):
        table.add_column(column, justify="right" if column else "left")
    for row in rows:
        table.add_row(
            row.what,
            f"{row.seconds:.3f}",
            f"{row.tokens_per_s:,.0f}",
            f"{row.ms_per_step:.2f}",
            f"{peer.seconds / row.seconds:.2f}",
            f"{row.seconds / dense.seconds:.2f}",
        )
    Console().print(table)


@app.command("kernels")
def kernels(
    csv: Annotated[Path | None, typer.Option(help="Write the table there, as CSV.")] = None,
    only: Annotated[str | None, typer.Option(help="Time one op alone.")] = None,
    quick: Annotated[
        bool, typer.Option(help="One small shape an op: does everything run?")
    ] = False,
) -> None:
    """Every kernel beside its peers on one GPU: time, byte or FLOP floor, ratio to it."""
    from sparrow_kernels.bench import MODULES, gather, write_csv

    if only is not None and only not in MODULES:
        raise UserError(
            f"unknown op '{only}'{nearest(only, MODULES)}; allowed: {', '.join(MODULES)}", "--only"
        )
    import torch
    from rich.console import Console

    if not torch.cuda.is_available():
        raise UserError(
            "needs a CUDA device, and torch finds none on this machine", "bench kernels"
        )
    rows = []
    # one line a row as it is measured: a run that is cut short leaves what it had
    for row in gather("cuda", quick, only):
        rows.append(row)
        print(f"{row.op}: {row.shape}: {row.variant}: {row.ms:.4f} ms", flush=True)
        if csv is not None:
            write_csv(rows, csv)
    Console(width=200).print(_table(rows, f"{torch.cuda.get_device_name()}, {torch.__version__}"))


@app.command("rollout")
def rollout(
    model: Annotated[
        list[str] | None, typer.Option(help="A shape, such as qwen3-1.7b; default: the paper's.")
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="step, table4, trajectory, whole, peers; default: all."),
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table there, as CSV.")] = None,
    quick: Annotated[bool, typer.Option(help="Small batches, few lengths.")] = False,
) -> None:
    """The paged engine on one GPU with random weights: a step's time beside its byte floor."""
    import torch
    from rich.console import Console

    from sparrow_kernels.bench import write_csv
    from sparrow_lab.rollout.paged.bench.rows import PARTS, SCHEDULES
    from sparrow_lab.rollout.paged.bench.rows import rows as measure

    for name, given, allowed in (("--part", part, PARTS), ("--model", model, tuple(SCHEDULES))):
        for one in given or ():
            if one not in allowed:
                known = ", ".join(allowed)
                raise UserError(f"unknown '{one}'{nearest(one, allowed)}; allowed: {known}", name)
    if not torch.cuda.is_available():
        raise UserError(
            "needs a CUDA device, and torch finds none on this machine", "bench rollout"
        )
    found = []
    for one in part or PARTS:
        # the paper's step and Table 4 are those of its smallest model
        for name in model or (list(SCHEDULES) if one == "trajectory" else ["qwen3-1.7b"]):
            for row in measure(one, name, torch.device("cuda"), quick):
                found.append(row)
                print(f"{row.op}: {row.shape}: {row.variant}: {row.ms:.4f} ms", flush=True)
                if csv is not None:
                    write_csv(found, csv)
            torch.cuda.empty_cache()
    Console(width=200).print(_table(found, f"{torch.cuda.get_device_name()}, {torch.__version__}"))


def _table(rows: list[Row], title: str) -> Table:
    """Rows of a bench beside their floors and aims."""
    from rich.table import Table

    table = Table(title=f"{title}, medians")
    for column in ("op", "shape", "variant", "ms", "TB/s", "floor ms", "ratio", "aim ms", "note"):
        numbers = column in ("ms", "TB/s", "floor ms", "ratio", "aim ms")
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        missed = row.reached is False
        table.add_row(
            row.op,
            row.shape,
            f"{row.variant} (peer)" if row.peer else row.variant,
            f"{row.ms:.4f}",
            f"{row.tb_per_s:.2f}" if row.bytes else "",
            f"{row.floor_ms:.4f}",
            f"{row.ratio:.2f}",
            "" if row.aim_ms is None else f"{row.aim_ms:.4f}" + (" missed" if missed else ""),
            row.note,
        )
    return table


@app.command("sweep")
def sweep(
    points: Annotated[int, typer.Option(min=30, help="About so many points.")] = 10_000,
    folder: Annotated[
        Path | None, typer.Option(help="Work there and leave it; the default is gone afterwards.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when a target was missed.")
    ] = False,
) -> int:
    """Plan, submit to a pretended Slurm and look at a large sweep: times and peak memory."""
    import tempfile

    from rich.console import Console
    from rich.table import Table

    from sparrow_lab.sweep.bench import MEMORY_MB, bench_sweep

    table = Table(title=f"a sweep of {points:,} points")
    for column in ("", "s", "target", "CPU s", "peak MB", "target"):
        table.add_column(column, justify="right" if column else "left")
    missed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for step in bench_sweep(points, folder or Path(temporary)):
            missed += not step.good
            limit = "" if step.target_s is None else f"< {step.target_s:g}"
            style = None if step.good else "red"
            times = (step.what, f"{step.seconds:.2f}", limit, f"{step.cpu_s:.2f}")
            table.add_row(*times, f"{step.peak_mb:.0f}", f"< {MEMORY_MB:g}", style=style)
    Console().print(table)
    return 1 if missed and check else 0
