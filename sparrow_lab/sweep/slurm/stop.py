"""Cancelling what a cluster holds of some points."""

from __future__ import annotations

from collections.abc import Collection

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.notes import Notes
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.squeue import cancel, read_queue


def cancel_jobs(sweep: SweepFolder, notes: Notes, ids: Collection[str]) -> str:
    """Cancel the jobs whose next unfinished point is one of `ids`; a line on what was done.

    The ledger says already that they are cancelled. What waits is taken out of the queue; what
    runs is asked to save and leave, which it does within the site's grace, and does not ask to
    go on. A job that is at another point stays, and looks into the ledger before it begins one
    of these.
    """
    queue = read_queue()
    if queue.error:
        return f"warning: {queue.error}; jobs look into the ledger before they begin a point"
    waiting: list[str] = []
    running: list[str] = []
    for (token, index), queued in queue.elements.items():
        submission = notes.submissions.get(token)
        if submission is None or index >= len(submission.elements):
            continue
        left = [i for i in submission.elements[index] if sweep.point(i).read_result() is None]
        if left and left[0] in ids and notes.of(left[0]).chunk == token:
            (running if queued.phase == "running" else waiting).append(queued.job)
    try:
        cancel(waiting)
        cancel(running, "--signal=USR2")
    except SlurmError as error:
        return f"warning: {error}; jobs look into the ledger before they begin a point"
    return f"on the cluster: {len(waiting)} jobs cancelled, {len(running)} asked to save and leave"
