"""A small job on a node: whether what works here works there."""

from __future__ import annotations

import re
import secrets
import sys
import time
from pathlib import Path
from typing import Any

import sparrow_lab
from sparrow_lab.config.site import SiteConfig
from sparrow_lab.doctor.check import Check, fail, ok, warn
from sparrow_lab.doctor.machine import judge_driver
from sparrow_lab.doctor.places import judge_skew
from sparrow_lab.doctor.probe import REPORT
from sparrow_lab.runs.atomic import read_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.squeue import cancel, read_queue

POLL_S = 0.5
_TROUBLE = re.compile(r"command not found|no such file|unable to|error", re.IGNORECASE)


def check_node(site: SiteConfig, scratch: Path, wait_s: float) -> list[Check]:
    """Submit the probe, wait for it, and judge what it saw.

    Args:
        scratch: a folder of the runs' file system; the job's files lie there.
        wait_s: give up on a job that has not begun by then; it is cancelled.
    """
    from sparrow_lab.sweep.slurm.module_executor import ModuleExecutor, small_site

    token = secrets.token_hex(8)
    code = Path(sparrow_lab.__file__).resolve().parents[1]
    chunk = Chunk(token, "doctor", str(scratch), str(code), ((),), grace=site.grace)
    folder = SweepFolder(scratch).submission(token)
    folder.mkdir(parents=True)
    lines = [*site.setup, *([f"export DOCTOR_CACHE={site.cache}"] if site.cache else [])]
    small = small_site(site, gpus=site.gpus, constraint=site.constraint, time=5, setup=lines)
    try:
        job = ModuleExecutor(chunk, small, "sparrow_lab.doctor.probe", str(folder)).send()
    except SlurmError as error:
        return [fail("node", f"a small job was refused: {error}", "see the line 'job'")]
    seen = _wait(folder, token, wait_s)
    log = folder / "0.log"
    if isinstance(seen, dict):
        return [*judge_node(seen, site), *judge_log(log, site)]
    if seen == "pending":
        if job:
            cancel([job])
        remedy = "nothing is wrong with that; try again later, or give --wait more seconds"
        return [warn("node", f"no node began a small job within {wait_s:g} s", remedy)]
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
    found = f"a small job there failed: {' '.join(last) or 'it left no word'}"
    remedy = "'setup:' in the site file may have to load what is missing; is this folder shared?"
    return [fail("node", found, remedy)]


def judge_node(seen: dict[str, Any], site: SiteConfig) -> list[Check]:
    """Checks from what the probe wrote."""
    host = seen["host"]
    checks = []
    mine, theirs = list(sys.version_info[:3]), seen["python"]
    text = f"{host}: Python {'.'.join(map(str, theirs))} at {seen['executable']}"
    if mine[:2] != theirs[:2]:
        remedy = "use one environment for both: load it in 'setup:', or put it on a shared disk"
        here = ".".join(map(str, mine))
        checks.append(fail("node's python", f"{text}, but {here} here", remedy))
    else:
        checks.append(ok("node's python", text))
    skew = judge_skew(float(seen["skew"]), host)
    checks.append(Check("node's clock", skew.level, skew.found, skew.remedy))
    if site.gpus:
        driver = judge_driver(seen["cuda"], seen["driver"])
        if seen["driver"] is None:
            remedy = "is 'partition' the one with GPUs, and nvidia-smi on its nodes?"
            driver = warn("driver", "nvidia-smi shows no GPU", remedy)
        found = f"{host}: {driver.found}"
        checks.append(Check("node's driver", driver.level, found, driver.remedy))
    checks.append(_cache(seen, site))
    if not seen["sbatch"]:
        checks.append(
            warn(
                "node's sbatch",
                f"{host} has no sbatch: interrupted jobs and searches cannot go on by themselves",
                "ask for it, or load it in 'setup:'",
            )
        )
    return checks


def judge_log(log: Path, site: SiteConfig) -> list[Check]:
    """A line of `setup:` that fails does not stop the job: bash says so and goes on."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    bad = [line.strip() for line in lines if _TROUBLE.search(line)]
    if not bad or not site.setup:
        return []
    return [warn("node's setup", bad[0], f"see {site.where('setup')}")]


def _cache(seen: dict[str, Any], site: SiteConfig) -> Check:
    name = "node's cache"
    if site.cache is None:
        remedy = f"set 'cache:' to a folder on the node's disk ({site.where('cache')})"
        return warn(name, "compiled kernels go where the libraries put them", remedy)
    if not seen["cache_there"]:
        remedy = f"see {site.where('cache')}"
        return fail(name, f"{seen['cache']} cannot be written on {seen['host']}", remedy)
    if seen["cache_kind"]:
        kind = seen["cache_kind"]
        remedy = f"give a folder on the node's own disk: see {site.where('cache')}"
        return fail(name, f"{seen['cache']} is on a network file system ({kind})", remedy)
    return ok(name, f"{seen['cache']} on the node's own disk")


def _wait(folder: Path, token: str, wait_s: float) -> dict[str, Any] | str:
    """The report; `pending` when the job never began; empty when it ended without a report."""
    deadline = time.monotonic() + wait_s
    gone = 0
    while True:
        seen = read_json(folder / REPORT)
        if isinstance(seen, dict):
            return seen
        queue = read_queue()
        mine = queue.of(token)
        gone = gone + 1 if not queue.error and not mine else 0
        if gone > 4:  # out of the queue for a while, and a shared disk had time to show the file
            return ""
        if time.monotonic() > deadline and mine and mine[0].phase == "pending":
            return "pending"
        if time.monotonic() > deadline + 120:
            return ""
        time.sleep(POLL_S)
