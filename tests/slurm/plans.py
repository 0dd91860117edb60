"""Small sweeps for the tests of faults, and waiting for what Slurm does with them."""

from __future__ import annotations

import subprocess
from typing import Any

from sparrow_lab.runs.plan import Plan
from tests.contracts.backends import Backend
from tests.sweep import fakes


def trains(count: int, name: str = "fake", **settings: Any) -> Plan:
    """Training runs of fake steps that need nothing; the first is `7a000`."""
    points = [fakes.make_point(f"7a{i:03d}", "train", seed=i, **settings) for i in range(count)]
    return Plan(name, {}, tuple(points))


def job_of(backend: Backend, point_id: str) -> str:
    """The job that a point is in, as scancel takes it."""
    job = backend.states()[point_id].job
    assert job, f"{point_id} is in no job"
    return job


def node_of(job: str) -> str:
    """The node that a job runs on."""
    shown = subprocess.run(["squeue", "-h", "-j", job, "-o", "%N"], capture_output=True, text=True)
    return shown.stdout.strip()


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many of the spans of time overlap at most."""
    ends = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in ends:
        now += change
        most = max(most, now)
    return most
