"""Whether a controller is at work for a sweep, on any machine; reads only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.search.lease import Lease
from sparrow_lab.sweep.slurm.squeue import read_queue
from sparrow_lab.sweep.slurm.start import last_words

EVENT = "controller"
"""Kind of the ledger's event with token and number of a controller's job."""
BEGINS = "controller of "
"""What a controller says first, in its log."""


def controller_job(sweep: SweepFolder) -> str:
    """What is at work or waits to be: `job 120_0 on n1`, or `job 120_0, pending: waits for free
    nodes`; empty when there is no controller."""
    if not controller_folder(sweep).is_dir():
        return ""
    holder = lease_of(sweep).holder(has_left_the_queue)
    if holder is not None:
        job = holder.get("job")
        return f"job {job} on {holder.get('host')}" if job else f"pid {holder.get('pid')}"
    events = [e for e in Ledger(sweep.ledger_path).read() if e["event"] == EVENT]
    queued = read_queue().of(str(events[-1].get("token"))) if events else []
    if not queued:
        return ""
    why = f": {queued[0].why}" if queued[0].why else ""
    return f"job {queued[0].job}, {queued[0].phase}{why}"


def why_not_begun(sweep: SweepFolder) -> str:
    """How the last controller's job ended if that was before the controller had begun, as when
    a line of `setup:` exits; empty else. To be asked where nothing is at work."""
    if not controller_folder(sweep).is_dir():
        return ""
    events = [e for e in Ledger(sweep.ledger_path).read() if e["event"] == EVENT]
    log = sweep.submission(str(events[-1].get("token"))) / "0.log" if events else None
    try:
        text = log.read_text(errors="replace") if log is not None else BEGINS
    except OSError:  # it has never had a node
        return ""
    if log is None or BEGINS in text:
        return ""
    said = last_words(log) or "it printed nothing"
    return f"its job {events[-1].get('job')} ended before it had begun: {said}; see {log}"


def controller_folder(sweep: SweepFolder) -> Path:
    """Everything of the controller of an adaptive sweep on a cluster."""
    return sweep.path / "controller"


def lease_of(sweep: SweepFolder) -> Lease:
    """The lease of a sweep's controller."""
    return Lease(controller_folder(sweep) / "leases")


def has_left_the_queue(holder: Mapping[str, Any]) -> bool:
    """Whether the job of a lease's holder is in the queue no more; False when that is not known."""
    job = holder.get("job")
    if not job:
        return False
    queue = read_queue()
    return not queue.error and all(q.job != job for q in queue.elements.values())
