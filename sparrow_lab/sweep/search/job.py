"""The controller's job: how it is submitted, and what it does when it is asked to leave."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.stages.signals import StopFlag, stop_on_signals
from sparrow_lab.sweep.search.at_work import EVENT, controller_job
from sparrow_lab.sweep.search.cluster_loop import control
from sparrow_lab.sweep.slurm.allocation import Allocation
from sparrow_lab.sweep.slurm.blame import refusal
from sparrow_lab.sweep.slurm.chunk import Chunk, read_chunk
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.send import BACKOFF_S
from sparrow_lab.sweep.slurm.snapshot import take_snapshot

if TYPE_CHECKING:
    from rich.console import Console

    from sparrow_lab.sweep.slurm.module_executor import ModuleExecutor


def submit_controller(sweep: SweepFolder, site: SiteConfig, console: Console) -> str:
    """Submit a controller for the orders in the folder unless there is one; what is at work.

    Raises UserError with the line of the site file when it is refused.
    """
    known = controller_job(sweep)
    if known:
        return known
    sweep = SweepFolder(sweep.path.resolve())
    token = secrets.token_hex(8)
    chunk = Chunk(
        token=token,
        stage="controller",
        sweep=str(sweep.path),
        code=str(take_snapshot(sweep)),
        elements=((),),
        grace=site.grace,
        on_preempt=site.on_preempt,
        site=site.model_dump(mode="json"),
    )
    chunk.write()
    waits = list(BACKOFF_S)
    while True:
        try:
            job = _executor(chunk, site).send()
            break
        except SlurmError as error:
            if not error.passing or not waits:
                raise refusal(error, site, "the controller was not submitted") from error
            console.print(f"sbatch: {error.text}; trying again in {waits[0]:g} s")
            time.sleep(waits.pop(0))
    Ledger(sweep.ledger_path).append(EVENT, token=token, job=job)
    return f"job {job}, its log {chunk.folder / '0.log'}"


def run_job(sweep: SweepFolder) -> int:
    """Control the search; when Slurm ends the job early, see to it that it is started again."""
    from rich.console import Console

    console = Console(width=200)
    allocation = _allocation()
    with stop_on_signals(StopFlag()) as stop:
        code = control(sweep, stop, console, allocation.name if allocation else None)
        if not stop or allocation is None or not allocation.still_wanted():
            return code
        said = _again(sweep, allocation)
        what = f"could not be started again: {said}" if said else "will be started again"
        console.print(f"the controller {what}", markup=False)
    return 0


def _again(sweep: SweepFolder, allocation: Allocation) -> str:
    """Have this job run again; empty, or why it will not."""
    events = [e for e in Ledger(sweep.ledger_path).read() if e["event"] == EVENT]
    mine = [e for e in events if str(e.get("job")) == allocation.array]
    if mine:
        try:
            chunk = read_chunk(sweep.submission(str(mine[-1]["token"])))
        except UserError:
            return allocation.requeue()
        if chunk.on_preempt == "resubmit":
            return allocation.resubmit(chunk)
    return allocation.requeue()


def _allocation() -> Allocation | None:
    try:
        return Allocation.here()
    except KeyError:
        return None  # started by hand


def _executor(chunk: Chunk, site: SiteConfig) -> ModuleExecutor:
    """Needs neither GPUs nor much of anything; a partition of its own if the site has one."""
    from sparrow_lab.sweep.slurm.module_executor import ModuleExecutor, small_site

    small = small_site(site, partition=site.controller_partition or site.partition)
    return ModuleExecutor(chunk, small, "sparrow_lab.sweep.search", chunk.sweep)
