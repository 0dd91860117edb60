"""How long a large sweep takes to plan, submit and look at: the commands themselves, timed.

Each step is the command as a user types it, in a process of its own, so that its time is what
one waits and its memory is all that it takes. The cluster is a pretended one that takes every
job and runs none; nothing is trained.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparrow_lab.errors import UserError
from sparrow_lab.fake_slurm import FakeSlurm
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.runs.layout import DONE, SweepFolder
from sparrow_lab.runs.plan import PLAN_SCHEMA
from sparrow_lab.runs.process import this_process

NAME = "bench"
PLAN_S, STATUS_S, MEMORY_MB = 5.0, 2.0, 500.0
"""Targets, for 10,000 points."""

TAUS = (0.5, 0.7, 0.8, 0.86, 0.92)
PAGE_SIZES = (8, 16)
SITE = "partition: main\ntime: 60\ncpus: 1\n"


@dataclass(frozen=True)
class Step:
    """One command: `target_s` is None where no time was promised. `cpu_s` of `seconds` it worked
    itself, with the programs that it called; the rest it waited, on a busy machine for others."""

    what: str
    seconds: float
    cpu_s: float
    peak_mb: float
    target_s: float | None = None

    @property
    def good(self) -> bool:
        """Whether it kept within the targets."""
        return self.peak_mb <= MEMORY_MB and (
            self.target_s is None or self.seconds <= self.target_s
        )


def bench_sweep(points: int, folder: Path) -> Iterator[Step]:
    """Plan, submit and look at a sweep of about so many points in an empty folder.

    Raises UserError when a step fails; the text is its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, site, runs = folder / f"{NAME}.yaml", folder / "site.yaml", folder / "runs"
    file.write_text(experiment(points))
    site.write_text(SITE)
    fake = FakeSlurm(folder / "slurm")
    run = _runner({"PATH": fake.path, "SPARROW_RUNS": str(runs)})
    sweep = SweepFolder(runs / NAME)
    yield run("plan and preview", ["sweep", str(file), "--dry-run"], PLAN_S)
    submit = ["sweep", str(file), "--site", str(site), "--no-report"]
    yield run("plan and submit", submit)
    status = ["status", NAME]
    yield run("status, all in the queue", status, STATUS_S)
    finish_half(sweep, fake)
    yield run("status, half of them done", status, STATUS_S)
    yield run("status --json", [*status, "--json"], STATUS_S)
    yield run("submit again: nothing is missing", submit)


def experiment(points: int) -> str:
    """An experiment file with about so many points: most of them training and evaluation."""
    levels = len(TAUS) * len(PAGE_SIZES)
    seeds = max(1, round((points - len(PAGE_SIZES) - levels) / (2 * levels)))
    taus = ", ".join(f"{{tau: {tau}}}" for tau in TAUS)
    return f"""\
name: {NAME}
base:
  sparsity: {{dense_layers: 1, reserved: {{first_tokens: 8, last_tokens: 16}}}}
sweep:
  axes:
    sparsity.page_size: {list(PAGE_SIZES)}
    sparsity.schedule: [{taus}]
    seed: {list(range(seeds))}
tracking: {{enabled: false}}
"""


def finish_half(sweep: SweepFolder, fake: FakeSlurm) -> None:
    """Give the first half of the points results, as if their jobs had run, and end those jobs."""
    plan = sweep.read_plan()
    half = plan.points[: len(plan.points) // 2]
    for point in half:
        folder = sweep.point(point.id)
        claim = {"schema": PLAN_SCHEMA, **this_process(), "token": "bench"}
        write_json(folder.path / "attempts" / "1" / "claim.json", claim, durable=False)
        result = {
            "schema": PLAN_SCHEMA,
            "marker": DONE,
            "id": point.id,
            "stage": point.stage,
            "attempt": 1,
            "seconds": 60.0,
            "metrics": {"evaluate/reward": 0.9, "acceptance/p05": 0.87},
            "alias_of": None,
        }
        write_json(folder.path / "result.json", result, durable=False)
    for job in dict.fromkeys(task["job"] for task in fake.tasks()):
        count = len(fake.tasks(job)) // 2
        if count:
            fake.set_state(f"{job}_[0-{count - 1}]", "COMPLETED")


def measure(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak megabytes of a command, with the programs that it called.

    On Linux the peak is at least what the calling process holds, which a child begins with.

    Raises UserError with its last words when it fails.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        last = said.strip().splitlines()[-1:] or [f"ended with {process.returncode}"]
        raise UserError(last[0], " ".join(command[-4:]))
    unit = 1 if sys.platform == "darwin" else 1024
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 2**20


def _runner(environment: Mapping[str, str]) -> Callable[..., Step]:
    def run(what: str, arguments: Sequence[str], target_s: float | None = None) -> Step:
        command = [sys.executable, "-m", "sparrow_lab.cli", *arguments]
        return Step(what, *measure(command, environment), target_s)

    return run
