"""Which acceptance histograms become pictures, and the files that go beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.runs.histograms import read_histograms, read_tables
from sparrow_lab.tracking.cells import Cell
from sparrow_lab.tracking.task import Task, files

if TYPE_CHECKING:
    from sparrow_lab.acceptance.histogram import AcceptanceHistogram

PICTURES = 10
"""About so many a run, spread over its steps."""
MAX_ARTIFACT = 256 * 2**20
"""Larger files stay in the run folder only (bytes)."""
LOG_TAIL = 512 * 2**10


def chosen(steps: Sequence[int], total: int) -> list[int]:
    """The steps that get a picture: the first one, and the first at or after each tenth of `total`.

    The choice for the steps so far does not change when more steps come. [] for no steps.
    """
    picked: list[int] = []
    for tenth in range(PICTURES + 1):
        due = next((step for step in steps if step * PICTURES >= tenth * total), None)
        if due is not None and due not in picked:
            picked.append(due)
    return picked


def pictures(
    task: Task, name: str, cells: Sequence[Cell], had: Sequence[int]
) -> Iterator[tuple[int, int, bytes]]:
    """(step, milliseconds since 1970, PNG bytes) of each picture that is due and not in `had`.

    While the task runs, a histogram counts once a later step is in `cells`: an older attempt's
    may lie there still for a step that is being measured again.
    """
    from sparrow_lab.tracking.figures import acceptance_figure, png

    if task.alias_of:
        return
    found: dict[int, AcceptanceHistogram] = dict(read_histograms(task.folder))
    newest = cells[-1].step if cells else -1
    steps = [step for step in found if not task.live or step < newest]
    train = task.point.config.get("train", {})
    total = int(train.get("steps", 0)) if task.point.stage == "train" else 0
    times = {cell.step: cell.time for cell in cells}
    tau = task.point.label.get("tau")
    for step in chosen(steps, total or max(steps, default=0)):
        if step not in had:
            title = f"{name}   step {step}"
            figure = acceptance_figure(found[step], title, tau if isinstance(tau, float) else None)
            yield step, times.get(step, round((task.ended or task.started) * 1000)), png(figure)


def artifacts(task: Task, scratch: Path) -> dict[str, Path]:
    """Files to keep with the run, by name. Those that still grow wait until the task has ended.

    The point's own files as they are; from the attempts the last log's tail, the last
    failure, and all histograms in one file, which are written into `scratch`.
    """
    named = {path.name: path for path in files(task.folder.path)}
    if task.live:
        named = {name: path for name, path in named.items() if name == "point.json"}
    elif task.attempts:
        named.update(_of_attempts(task, scratch))
    return {name: path for name, path in named.items() if path.stat().st_size <= MAX_ARTIFACT}


def _of_attempts(task: Task, scratch: Path) -> dict[str, Path]:
    latest = task.attempts[-1]
    named: dict[str, Path] = {}
    if latest.failure_path.exists():
        named["failure.json"] = latest.failure_path
    if latest.log_path.exists():
        named["log.txt"] = scratch / "log.txt"
        with latest.log_path.open("rb") as stream:
            stream.seek(max(0, latest.log_path.stat().st_size - LOG_TAIL))
            named["log.txt"].write_bytes(stream.read())
    tables = [table for _, table in read_tables(task.folder)]
    if tables:
        import pyarrow as pa
        import pyarrow.parquet as pq

        named["histograms.parquet"] = scratch / "histograms.parquet"
        pq.write_table(pa.concat_tables(tables), named["histograms.parquet"], compression="zstd")
    return named


def content_hash(path: Path) -> str:
    """First 12 hex digits of the file's SHA-256."""
    total = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(2**20):
            total.update(block)
    return total.hexdigest()[:12]
