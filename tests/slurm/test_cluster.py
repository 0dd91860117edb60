"""The test cluster does what the tests on it rely on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.slurm.real import RealSlurm, run, wait_for

pytestmark = pytest.mark.slurm


def test_a_job_sees_its_node_its_gpu_and_nothing_else(slurm: RealSlurm, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = slurm.sbatch(
        "hostname; echo gpus $CUDA_VISIBLE_DEVICES", "--gres=gpu:1", f"--output={out}"
    )
    wait_for(lambda: slurm.ended(job), 20)
    host, gpus = out.read_text().splitlines()
    assert host in ("n1", "n2") and gpus in ("gpus 0", "gpus 1")


def test_start_leaves_alone_what_runs(slurm: RealSlurm) -> None:
    before = slurm.pids()
    assert None not in before.values()
    slurm.repair()
    assert slurm.pids() == before


def test_start_brings_back_what_was_killed(slurm: RealSlurm, tmp_path: Path) -> None:
    before = slurm.pids()
    killed = ("slurmctld", "slurmd.n2", "slurmdbd")
    for name in killed:
        slurm.kill(name)
    wait_for(lambda: {name for name, pid in slurm.pids().items() if pid is None} == set(killed), 5)
    slurm.repair()
    after = slurm.pids()
    assert None not in after.values()
    assert {name for name in after if after[name] != before[name]} == set(killed)
    job = slurm.sbatch(f"touch {tmp_path}/ran", "--nodelist=n2", "--output=/dev/null")
    wait_for(lambda: slurm.ended(job), 20)
    assert (tmp_path / "ran").exists()


def test_a_requeued_job_starts_again_soon(slurm: RealSlurm, tmp_path: Path) -> None:
    script = f"echo start ${{SLURM_RESTART_COUNT:-0}} >> {tmp_path}/starts; sleep 100"
    job = slurm.sbatch(script, "--requeue", "--output=/dev/null")
    wait_for(lambda: (tmp_path / "starts").exists(), 20)
    run("scontrol", "requeue", job)
    wait_for(lambda: "start 1" in (tmp_path / "starts").read_text(), 30)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ("--array=0-1001", "Invalid job array specification"),
        ("--partition=nowhere", "invalid partition specified: nowhere"),
        ("--account=nobody", "Invalid account"),
        ("--gres=gpu:3", "Requested node configuration is not available"),
    ],
)
def test_what_cannot_be_is_refused_at_once(slurm: RealSlurm, option: str, error: str) -> None:
    done = subprocess.run(
        ["sbatch", option, "--wrap=true", "--output=/dev/null"], capture_output=True, text=True
    )
    assert done.returncode != 0 and error in done.stderr
