"""Checks in killable processes: limits, replacement, threads, and what a hostile check can do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from sparrow_lab.tasks.judge_pool import JudgePool, judge_pool

HERE = "tests.tasks.checks"


@pytest.fixture
def pool() -> Iterator[JudgePool]:
    made = JudgePool(2)
    yield made
    made.close()


def test_value_comes_back(pool: JudgePool) -> None:
    outcome = pool.run(f"{HERE}:double", 21, limit_s=5)
    assert (outcome.status, outcome.value) == ("done", 42)
    assert pool.places() == 2


def test_an_exception_is_a_crash_with_its_reason_and_the_judge_lives_on(pool: JudgePool) -> None:
    first = pool.run(f"{HERE}:pid", limit_s=5).value
    outcome = pool.run(f"{HERE}:fail", "no such thing", limit_s=5)
    assert outcome.status == "crash" and outcome.reason == "ValueError: no such thing"
    assert pool.run(f"{HERE}:pid", limit_s=5).value == first
    assert (pool.crashes, pool.timeouts) == (1, 0)


def test_a_hundred_timeouts_are_killed_and_the_pool_keeps_its_size(pool: JudgePool) -> None:
    begin = time.time()
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(pool.run, f"{HERE}:spin", limit_s=0.05) for _ in range(100)]
        outcomes = [call.result() for call in calls]
    assert {o.status for o in outcomes} == {"timeout"}
    assert pool.timeouts == 100 and pool.places() == pool.size == 2
    assert pool.run(f"{HERE}:double", 4, limit_s=5).value == 8
    # older ones are those of other tests' pools in this process
    children = [p for p in psutil.Process().children() if p.create_time() > begin - 0.1]
    workers = [p for p in children if "judge_worker" in " ".join(p.cmdline())]
    assert 1 <= len(workers) <= 2


def test_a_check_that_holds_the_interpreter_lock_is_killed(pool: JudgePool) -> None:
    begin = time.monotonic()
    assert pool.run(f"{HERE}:hold_the_lock", limit_s=0.2).status == "timeout"
    assert time.monotonic() - begin < 60


def test_a_check_that_waits_instead_of_working_is_killed(pool: JudgePool) -> None:
    assert pool.run(f"{HERE}:sleep", 600, limit_s=0.1).status == "timeout"


def test_children_of_a_killed_check_die_with_it(pool: JudgePool) -> None:
    mark = f"sparrow-test-{os.getpid()}"
    assert pool.run(f"{HERE}:spawn_and_spin", mark, limit_s=0.3).status == "timeout"
    time.sleep(0.2)
    left = [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]
    assert left == []


def test_the_limit_does_not_count_imports_or_waiting_for_a_place(pool: JudgePool) -> None:
    """60 checks of 0.1 s on 2 places take over 3 s in all, and none of them may time out at 1 s."""
    with ThreadPoolExecutor(60) as threads:
        calls = [threads.submit(pool.run, f"{HERE}:work", 0.1, limit_s=1.0) for _ in range(60)]
        assert [call.result().status for call in calls] == ["done"] * 60
    slow = pool.run("tests.tasks.slow_import:check", limit_s=0.3)
    assert slow.status == "done"


def test_a_judge_that_dies_is_a_crash_and_is_replaced(pool: JudgePool) -> None:
    outcome = pool.run(f"{HERE}:die", limit_s=5)
    assert outcome.status == "crash" and "exit code 7" in outcome.reason
    assert pool.run(f"{HERE}:double", 1, limit_s=5).value == 2
    assert pool.places() == 2


def test_a_judge_killed_while_idle_is_replaced(pool: JudgePool) -> None:
    psutil.Process(pool.run(f"{HERE}:pid", limit_s=5).value).kill()
    time.sleep(0.1)
    assert pool.run(f"{HERE}:double", 5, limit_s=5).value == 10


def test_prints_of_a_check_do_not_reach_the_protocol(pool: JudgePool) -> None:
    assert pool.run(f"{HERE}:chatter", limit_s=5).value == "quiet"


def test_memory_is_bounded(pool: JudgePool) -> None:
    outcome = pool.run(f"{HERE}:take_memory", limit_s=20)
    assert outcome.status == "crash" and "MemoryError" in outcome.reason


def test_an_unknown_check_is_a_crash_not_a_hang(pool: JudgePool) -> None:
    outcome = pool.run("tests.tasks.checks:nothing", limit_s=1)
    assert outcome.status == "crash" and "AttributeError" in outcome.reason


def test_a_large_request_goes_through(pool: JudgePool) -> None:
    assert pool.run(f"{HERE}:length", "x" * 3_000_000, limit_s=5).value == 3_000_000


def test_the_shared_pool_is_one_a_process() -> None:
    assert judge_pool() is judge_pool()


def test_a_judge_leaves_when_its_parent_is_killed() -> None:
    """Also in the middle of a check, so that a cancelled job leaves nothing behind."""
    script = (
        "import sys, threading, time\n"
        "from sparrow_lab.tasks.judge_pool import JudgePool\n"
        "pool = JudgePool(1)\n"
        f"print(pool.run('{HERE}:pid', limit_s=5).value, flush=True)\n"
        f"pool.run('{HERE}:sleep', 600, limit_s=600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        judge = int(parent.stdout.readline())
        parent.kill()
    gone, alive = psutil.wait_procs([psutil.Process(judge)] if psutil.pid_exists(judge) else [], 30)
    assert alive == [], gone


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM, signal.SIGINT])
def test_a_judge_does_not_hear_the_stop_signal_of_its_job(
    pool: JudgePool, number: signal.Signals
) -> None:
    """Slurm signals every process of a job: a judge that died of it would be a wrong answer."""
    pids = {pool.run(f"{HERE}:pid", limit_s=5).value for _ in range(4)}
    for pid in pids:
        os.kill(pid, number)
    assert {pool.run(f"{HERE}:pid", limit_s=5).value for _ in range(4)} <= pids
    assert pool.crashes == 0
