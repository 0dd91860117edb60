"""The stages themselves on a real Slurm: the numbers are those of this machine, also after a
preemption in the middle of training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.states import read_states
from tests.slurm.real import ROOT, RealSlurm, run, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

SETTINGS = (
    "sweep.axes.sparsity.schedule=[{tau: 0.8}]",
    "base.train.steps=60",  # long enough that a requeue comes before the end
    "base.train.checkpoint_every=100",  # but for the one that the signal makes
    "base.train.prompts=4",
)


def sweep(runs: Path, *options: str) -> SweepFolder:
    """Run `sparrow-lab sweep` on the smoke sweep, a little longer than it is."""
    command = [sys.executable, "-m", "sparrow_lab.cli", "sweep", "experiments/smoke.yaml"]
    for setting in SETTINGS:
        command += ["--set", setting]
    done = subprocess.run(
        [*command, "--runs", str(runs), "--no-report", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return SweepFolder(runs / "smoke")


def numbers(folder: SweepFolder) -> dict[str, dict[str, Any]]:
    """The metrics of each point, without those of speed."""
    found = {}
    for point in folder.points():
        result = point.read_result()
        assert result is not None, f"{point.id} is not done"
        metrics = result["metrics"].items()
        found[point.id] = {k: v for k, v in metrics if not k.endswith(("per_s", "_s"))}
    return found


def test_a_sweep_on_the_cluster_gives_the_numbers_of_this_machine(
    slurm: RealSlurm, tmp_path: Path
) -> None:
    there = sweep(tmp_path / "there", "--site", "slurm/test-cluster.yaml")
    (train,) = (p.id for p in there.read_plan().points if p.stage == "train")

    def steps() -> int:
        attempts = there.point(train).attempts()
        progress = attempts[0].read_progress() if attempts else None
        return int(progress["done"]) if progress else 0

    wait_for(lambda: steps() >= 2, 240)
    run("scontrol", "requeue", read_states(there)[train].job)
    here = sweep(tmp_path / "here")
    wait_for(lambda: run("squeue", "-h") == "", 240)
    assert numbers(there) == numbers(here)
    first, *_, last = there.point(train).attempts()
    assert (first.read_failure() or {})["kind"] == "interrupted" and last.number == 2
    for point in there.points():
        for name in ("curve.json", "schedule.json"):
            other = here.point(point.id).path / name
            assert (point.path / name).exists() == other.exists()
            if other.exists():
                assert (point.path / name).read_bytes() == other.read_bytes()
