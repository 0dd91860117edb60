"""`sparrow-lab calibrate`: the acceptance curve of one model at one page size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table


def command(
    model: Annotated[str, typer.Option(help="Built-in name, local folder or hub id.")],
    page_size: Annotated[int, typer.Option(min=1, help="Tokens a page.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for curve.json.")] = Path(
        "calibration"
    ),
    config: Annotated[
        Path | None, typer.Option(help="Experiment file whose `base` gives all other settings.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override, for example --set base.seed=1.")
    ] = None,
) -> None:
    """Roll out at many budgets before any update and write p5 by length bin.

    Next: `sparrow-lab schedule --curve calibration/curve.json --tau 0.86`.
    """
    from rich.console import Console

    from sparrow_lab.config.load import load_base
    from sparrow_lab.runs.atomic import write_bytes, write_json
    from sparrow_lab.runs.writable import check_writable

    overrides = [
        f"base.model.name={model}",
        f"base.sparsity.page_size={page_size}",
        *(set_ or []),
    ]
    point = load_base(config, overrides)
    check_writable(out, f"--out {out}")

    import torch

    from sparrow_lab.models.load import load_model
    from sparrow_lab.stages.calibrate import counts_table, measure_curve
    from sparrow_lab.tasks import make_task

    console = Console(stderr=True)
    torch.set_num_threads(point.threads)
    loaded, tokenizer = load_model(point.model)
    task = make_task(point.task, tokenizer)
    with console.status("calibrating") as status:

        def progress(done: int, total: int, note: str) -> None:
            if console.is_terminal:
                status.update(f"{done}/{total} {note}")
            else:
                console.print(f"{done}/{total} {note}")

        curve, kept = measure_curve(loaded, task, point, progress)
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / "acceptance.parquet", counts_table(kept, point.calibrate.bin_width))
    write_json(out / "curve.json", curve)
    Console().print(_table(curve))
    Console().print(f"wrote {out / 'curve.json'} and {out / 'acceptance.parquet'}", soft_wrap=True)


def _table(curve: dict[str, Any]) -> Table:
    """p5 by budget, pooled and by length bin."""
    from rich.table import Table

    starts = sorted({row["bin_start"] for row in curve["rows"]})
    table = Table(title=f"p5 of acceptance, {curve['model']}, page size {curve['page_size']}")
    for column in ("trajectories", "budget", "mean", "p5", *(f"from {s}" for s in starts)):
        table.add_column(column, justify="right")
    for row in curve["pooled"]:
        by_bin = {
            r["bin_start"]: r["p05"]
            for r in curve["rows"]
            if (r["trajectory"], r["budget"]) == (row["trajectory"], row["budget"])
        }
        cells = [f"{by_bin[s]:.3f}" if s in by_bin else "-" for s in starts]
        table.add_row(
            row["trajectory"], str(row["budget"]), f"{row['mean']:.3f}", f"{row['p05']:.3f}", *cells
        )
    return table
