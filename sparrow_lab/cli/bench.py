"""`sparrow-lab bench`: speed, as ratios against a peer measured in the same run."""

from __future__ import annotations

from typing import Annotated

import typer

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
