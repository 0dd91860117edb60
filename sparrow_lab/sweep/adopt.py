"""Finding the jobs of an earlier launcher that still run, so that none is started twice."""

from __future__ import annotations

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.notes import Notes
from sparrow_lab.runs.plan import Plan
from sparrow_lab.runs.process import is_alive
from sparrow_lab.sweep import processes
from sparrow_lab.sweep.gpu import wants_gpu
from sparrow_lab.sweep.jobs import Job


def find_live_jobs(sweep: SweepFolder, plan: Plan, notes: Notes) -> list[Job]:
    """Jobs of this sweep with live processes on this host.

    They are found by the token on their command line, which is there before they claim
    anything, and, for workers that were started by hand, by the pid and start time of
    their claim. Points that have left the plan are found too.
    """
    threads = {p.id: int(p.config.get("threads", 1)) for p in plan.points}
    on_gpu = {p.id for p in plan.points if wants_gpu(p)}
    by_token: dict[str, list[str]] = {}
    order = {point_id: i for i, point_id in enumerate(threads)}
    for point_id in sorted(notes.points, key=lambda i: order.get(i, len(order))):
        for token in notes.points[point_id].tokens:
            ids = by_token.setdefault(token, [])
            if point_id not in ids:
                ids.append(point_id)
    live = processes.find(set(by_token)) if by_token else {}
    found = [
        Job(
            sweep,
            token,
            by_token[token],
            max(threads.get(i, 1) for i in by_token[token]),
            started=min(p.create_time() for p in live_processes),
            gpu=not on_gpu.isdisjoint(by_token[token]),
        )
        for token, live_processes in live.items()
    ]
    found = [job for job in found if job.alive()]
    known = {point_id for job in found for point_id in job.points}
    claimed = [job for p in plan.points if p.id not in known for job in _by_claim(sweep, p.id)]
    for job in claimed:
        job.gpu = not on_gpu.isdisjoint(job.points)
    return found + claimed


def _by_claim(sweep: SweepFolder, point_id: str) -> list[Job]:
    """The job of a point's live claim that no token led to; empty when there is none."""
    folder = sweep.point(point_id)
    attempts = folder.attempts()
    if not attempts or attempts[-1].read_failure() is not None or folder.read_result():
        return []
    claim = attempts[-1].read_claim()
    if not claim or "slurm" in claim or not is_alive(claim):
        return []  # a cluster's job is found in its queue, also when its node is this host
    return [Job(sweep, "", [point_id], claims=[attempts[-1]], started=float(claim["start"]))]
