"""What a cluster says of a site file, asked of its own programs; nothing is submitted here."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from sparrow_lab.config.site import SiteConfig, load_site
from sparrow_lab.doctor.check import Check, fail, ok, warn
from sparrow_lab.errors import UserError
from sparrow_lab.sweep.slurm.limits import read_limits
from sparrow_lab.sweep.slurm.programs import SlurmError, call

NEEDED = ("sbatch", "squeue", "scontrol", "scancel")
USER_SIGNAL = "preempt_send_user_signal"


def check_site(file: Path) -> tuple[SiteConfig | None, Check]:
    """Whether the file can be read."""
    try:
        return load_site(file), ok("site file", str(file))
    except UserError as error:
        found = f"{error.where}: {error.message}" if error.where else error.message
        return None, fail("site file", found, "every key is described in config/site.py")


def check_programs() -> Check:
    """Slurm's programs on the PATH."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        found = f"not on the PATH: {', '.join(missing)}"
        return fail("slurm", found, "run this where jobs are submitted, or load Slurm's module")
    return ok("slurm", f"sbatch is {shutil.which('sbatch')}")


def check_answers() -> Check:
    """Whether the cluster's controller answers."""
    try:
        call(["squeue", "-h", "-o", "%i"], limit_s=30)
        said = call(["sbatch", "--version"], limit_s=30).strip()
    except SlurmError as error:
        return fail("queue", str(error), "ask the cluster's support, or wait if it is being mended")
    return ok("queue", f"answers ({said})")


def check_accounting() -> Check:
    """sacct is a help, and nothing depends on it."""
    try:
        call(["sacct", "-n", "-X", "-P", "-o", "JobID"], limit_s=30)
    except SlurmError as error:
        remedy = "nothing needs it; only why a job was killed (memory, time) is not told"
        return warn("accounting", error.text, remedy)
    return ok("accounting", "sacct answers")


def check_arrays(site: SiteConfig) -> Check:
    """The largest array, which larger sweeps are cut by."""
    limits = read_limits(site)
    if not limits.told and site.array_cap is None:
        remedy = "state 'array_cap' in the site file if the cluster allows fewer"
        return warn("arrays", f"scontrol does not tell; {limits.array} elements assumed", remedy)
    if site.array_cap is not None and limits.array < site.array_cap:
        text = f"array_cap is {site.array_cap}, but the cluster allows {limits.array}"
        return warn("arrays", text, f"the smaller is used; see {site.where('array_cap')}")
    return ok("arrays", f"{limits.array} elements each")


def check_partition(site: SiteConfig) -> list[Check]:
    """Time limit and preemption of each partition that is named."""
    checks: list[Check] = []
    config = _ask(["scontrol", "show", "config"])
    for name in (site.partition or "").split(","):
        text = _ask(["scontrol", "show", "partition", *([name] if name else [])])
        if not text:
            continue
        longest = _minutes(_field(text, "MaxTime"))
        if longest is not None and site.time > longest:
            found = f"{name}: {site.time} min are asked for, {longest:g} are allowed"
            checks.append(fail("time limit", found, f"lower 'time': see {site.where('time')}"))
        checks.append(_preemption(site, name, text, config))
    return checks


def _preemption(site: SiteConfig, name: str, text: str, config: str) -> Check:
    """Whether a job that is preempted has time to save, and goes on afterwards."""
    mode = (_field(text, "PreemptMode") or _field(config, "PreemptMode") or "OFF").upper()
    grace = int(_field(text, "GraceTime") or 0)
    called = f"partition {name}" if name else "the partitions"
    if "OFF" in mode.split(","):
        return ok("preemption", f"{called}: jobs are not preempted")
    if "CANCEL" in mode and site.on_preempt == "requeue":
        remedy = f"set 'on_preempt: resubmit' ({site.where('on_preempt')})"
        return warn("preemption", f"{called}: preempted jobs are cancelled for good", remedy)
    if grace == 0:
        remedy = "only what a periodic checkpoint holds is kept: lower train.checkpoint_every"
        return warn("preemption", f"{called}: preempted jobs get no time to save", remedy)
    if site.grace > grace:
        found = f"{called} gives {grace} s, the site file asks for {site.grace} s"
        return warn("preemption", found, f"lower 'grace': see {site.where('grace')}")
    signal = "USR2" if USER_SIGNAL in config else "TERM"
    return ok("preemption", f"{called}: {grace} s and {signal} before the end, then {mode.lower()}")


def _ask(command: list[str]) -> str:
    """What a program prints; empty when it fails."""
    try:
        return call(command, limit_s=30)
    except SlurmError:
        return ""


def _field(text: str, key: str) -> str | None:
    match = re.search(rf"\b{key}\s*=\s*(\S+)", text)
    return match[1] if match else None


def _minutes(text: str | None) -> float | None:
    """`2-00:00:00` or `30:00` in minutes; None for no limit."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text or "")
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
