"""What a real Slurm does to jobs: nothing is lost, nothing done twice, and the numbers stay."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest

from sparrow_lab.runs.plan import Plan
from tests.contracts import truth
from tests.contracts.backends import Backend, wait_until
from tests.slurm.conftest import MakeBackend
from tests.slurm.plans import job_of, most_at_once, node_of, trains
from tests.slurm.real import RealSlurm, run, wait_for
from tests.sweep import fakes

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(600)]

EVERYTHING = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null")
"""A job that needs both nodes, and takes them from the other partitions."""


def assert_went_on(backend: Backend, point_id: str, after: int, kind: str = "interrupted") -> None:
    """The point is done by a second attempt that went on where the first one had saved."""
    truth.assert_all_done(backend.sweep())
    assert len(backend.sweep().point(point_id).attempts()) == 2
    assert truth.kind_of(backend.sweep(), point_id) == kind
    assert truth.first_step(backend.sweep(), point_id, attempt=2) > after


def test_forty_points_four_at_a_time(real: MakeBackend) -> None:
    backend = real(more="throttle: 4\n", gpus=0)
    plan = trains(40, steps=2, sleep=0.2)
    assert set(backend.run(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())
    results = [point.read_result() or {} for point in backend.sweep().points()]
    at_once = most_at_once([(r["started"], r["finished"]) for r in results])
    assert 2 <= at_once <= 4


@pytest.mark.parametrize("partition", ["main", "low"])
def test_a_preempted_job_saves_and_goes_on(
    real: MakeBackend, slurm: RealSlurm, partition: str
) -> None:
    """`main` has no grace: SIGTERM, and SIGKILL 5 s later. `low` has 20 s, begun with USR2."""
    backend = real(partition=partition)
    plan = trains(1, steps=120, every=1000, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 10)
    slurm.sbatch("sleep 2", *EVERYTHING)
    assert set(backend.wait(plan).values()) == {"done"}
    assert_went_on(backend, "7a000", after=10)


def test_a_job_at_its_time_limit_saves_and_goes_on(real: MakeBackend) -> None:
    backend = real(minutes=1)
    # the signal comes up to 30 s before it is due, because Slurm looks every 30 s
    plan = trains(1, steps=500, every=10_000, sleep=0.1)
    backend.submit(plan)
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    kinds = [truth.kind_of(backend.sweep(), "7a000", n) for n in (1, 2)]
    assert kinds[0] == "interrupted" and kinds[-1] in ("interrupted", "")
    assert truth.first_step(backend.sweep(), "7a000", attempt=2) > 100


def test_a_requeued_job_saves_and_goes_on(real: MakeBackend) -> None:
    backend = real()
    plan = trains(1, steps=120, every=1000, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 10)
    run("scontrol", "requeue", job_of(backend, "7a000"))
    assert set(backend.wait(plan).values()) == {"done"}
    assert_went_on(backend, "7a000", after=10)


def test_after_scancel_the_same_command_goes_on(real: MakeBackend) -> None:
    backend = real()
    plan = trains(1, steps=120, every=1000, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 10)
    run("scancel", job_of(backend, "7a000"))
    assert backend.wait(plan) == {"7a000": "interrupted"}
    assert set(backend.run(plan).values()) == {"done"}
    assert_went_on(backend, "7a000", after=10)


def test_a_job_killed_without_a_word_goes_on_from_its_checkpoint(real: MakeBackend) -> None:
    backend = real()
    plan = trains(1, steps=120, every=5, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 12)
    worker = psutil.Process(backend.worker("7a000"))
    element = worker.parent()
    assert element is not None
    for process in (element, worker):
        process.kill()
    assert backend.wait(plan)["7a000"] == "lost"
    assert set(backend.run(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    begun = truth.first_step(backend.sweep(), "7a000", attempt=2)
    assert begun >= 11 and begun % 5 == 1


def test_on_a_lost_node_the_old_copy_gives_way(real: MakeBackend, slurm: RealSlurm) -> None:
    backend = real()
    # longer than Slurm takes to give the node up and to start the job again: 25 to 45 s
    plan = trains(1, steps=1400, every=10, sleep=0.05)
    backend.submit(plan)
    backend.until_step("7a000", 20)
    old = backend.worker("7a000")
    node = node_of(job_of(backend, "7a000"))
    slurm.kill(f"slurmd.{node}")
    # Slurm gives the node up after 10 s and starts the job on the other one
    backend.until_step("7a000", 20, attempt=2)
    assert node_of(job_of(backend, "7a000")) != node
    wait_until(lambda: not psutil.pid_exists(old) or psutil.Process(old).status() == "zombie")
    slurm.repair()
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    result = backend.sweep().point("7a000").read_result() or {}
    assert result["attempt"] == 2 and len(backend.sweep().point("7a000").attempts()) == 2


def test_without_slurmctld_for_a_while(real: MakeBackend, slurm: RealSlurm) -> None:
    backend = real()
    long = fakes.make_point("7a000", "train", steps=600, every=10, sleep=0.05)
    plan = Plan("fake", {}, (long, fakes.make_point("7a001", "train", seed=1)))
    backend.submit(plan)
    backend.until_step("7a000", 5)
    slurm.kill("slurmctld")
    states = {i: s.state for i, s in backend.states().items()}
    assert states == {"7a000": "running", "7a001": "submitted"}
    assert backend.submit(plan) == 2
    assert "nothing was submitted" in backend.said[-1]
    slurm.repair()
    assert backend.submit(plan) == 0
    assert set(backend.wait(plan).values()) == {"done"}
    truth.assert_all_done(backend.sweep())
    truth.assert_once(backend.sweep())


def test_without_accounting(real: MakeBackend, slurm: RealSlurm) -> None:
    backend = real()
    slurm.kill("slurmdbd")
    plan = fakes.make_plan(
        taus=[0.7, 0.8, 0.9],
        of={(0.8, 0): {"fail_at": 4}, (0.9, 0): {"steps": 100, "every": 5, "sleep": 0.05}},
    )
    backend.submit(plan, retries=0)
    backend.until_step("7a002000", 12)
    os.kill(backend.worker("7a002000"), signal.SIGKILL)
    states = backend.wait(plan)
    trained = [states[f"7a00{i}000"] for i in range(3)]
    assert trained == ["done", "failed", "lost"]
    assert slurm.pids()["slurmdbd"] is None
    truth.forgive(backend.sweep(), "7a001000")
    states = backend.run(plan, retries=0)
    assert states.pop("7a001000") == "failed" and states.pop("e0001000") == "held"
    assert set(states.values()) == {"done"}


def test_a_submitter_killed_twenty_times_loses_and_doubles_nothing(real: MakeBackend) -> None:
    backend = real(more="array_cap: 1\n")
    rng = random.Random(20)
    plans: list[Plan] = []
    kills = cuts = 0
    while kills < 20:
        plan = trains(5, name=f"fake{len(plans)}", steps=3)
        plans.append(plan)
        for _ in range(5):
            # a whole submission is a line a point, one more, and 2 for each of 5 arrays
            kills += kill_while_submitting(backend, plan, rng.randint(1, 9), rng.uniform(0, 0.05))
            cuts += "planned" in {s.state for s in backend.states(plan.name).values()}
    assert cuts >= 5  # they did come in the midst of it
    for plan in plans:
        assert backend.submit(plan) == 0
    for plan in plans:
        assert set(backend.wait(plan).values()) == {"done"}
        truth.assert_all_done(backend.sweep(plan.name))
        truth.assert_once(backend.sweep(plan.name))


def kill_while_submitting(backend: Backend, plan: Plan, lines: int, after_s: float) -> int:
    """Start the command, kill it soon after so many lines in the ledger; 1 if it was killed."""
    ledger = backend.sweep(plan.name).ledger_path

    def written() -> int:
        return len(ledger.read_text().splitlines()) if ledger.exists() else 0

    begun = written() or len(plan.points)
    process = backend.start(plan)
    while process.poll() is None and written() < begun + lines:
        time.sleep(0.005)
    time.sleep(after_s)
    process.kill()
    return int(backend.ended(process) == -signal.SIGKILL)


def test_a_sweep_after_all_of_it_is_as_if_nothing_had_been(
    real: MakeBackend, slurm: RealSlurm
) -> None:
    """Every fault on one sweep, then the same command until all is done; equal to a local run."""
    backend = real(partition="low")
    plan = trains(8, steps=200, every=20, sleep=0.05)
    kill_while_submitting(backend, plan, 2, 0.0)
    assert backend.submit(plan) == 0
    backend.until_step("7a000", 10)
    run("scontrol", "requeue", job_of(backend, "7a000"))
    backend.until_step("7a001", 10)
    os.kill(backend.worker("7a001"), signal.SIGKILL)
    backend.until_step("7a002", 10)
    run("scancel", job_of(backend, "7a002"))
    slurm.kill("slurmdbd")
    slurm.kill("slurmctld")
    time.sleep(1)
    slurm.repair()
    wait_for(lambda: any(s.state == "running" for s in backend.states().values()), 120)
    slurm.sbatch("sleep 1", *EVERYTHING)

    def over() -> bool:
        slurm.give_nodes_back()
        return backend.queue() == []

    wait_for(over, 240)
    backend.wait(plan)
    for _ in range(3):
        if set(backend.run(plan).values()) == {"done"}:
            break
    truth.assert_all_done(backend.sweep())
    local = Backend("local", backend.folder / "local")
    local.folder.mkdir()
    assert set(local.run(plan, parallel=8).values()) == {"done"}
    for point in plan.points:
        disturbed, calm = (b.sweep().point(point.id).read_result() for b in (backend, local))
        assert disturbed is not None and calm is not None
        assert disturbed["metrics"] == calm["metrics"]
