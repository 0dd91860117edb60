"""Whether sbatch would take a site's jobs, and all the lines of the site file that it would not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.doctor.check import Check, fail, ok
from sparrow_lab.runs.atomic import write_text
from sparrow_lab.sweep.slurm.blame import AMBIGUOUS, blamed_key
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.programs import SlurmError, call

HARMLESS: dict[str, Any] = {
    "partition": None,
    "account": None,
    "qos": None,
    "reservation": None,
    "time": 1,
    "constraint": None,
    "gpus": 0,
    "mem": None,
    "exclude": None,
    "cpus": 1,
    "extra": {},
}
"""A value of each key to which sbatch would hardly object."""

OF_A_NODE = ("gpus", "mem", "cpus", "constraint", "exclude")
"""Keys that a node may not have what is asked for by."""


def check_accepted(site: SiteConfig, scratch: Path) -> list[Check]:
    """Have sbatch look at the very script that a sweep would submit, without submitting it.

    It names one fault at a time: it is asked again with that key at a harmless value, until it
    would take the job, or says what is about no key, or about one that is harmless already.
    """
    found: list[Check] = []
    asked, harmless = site, set[str]()
    while (error := _refused(asked, scratch)) is not None:
        key = None if error.passing else _key(error, asked, scratch)
        where = site.where(key) if key else site.where("")
        about = f"{key}: " if key else ""
        name = "job" if not found else "job, besides"
        found.append(fail(name, f"{about}sbatch would refuse it: {error.text}", f"see {where}"))
        if key not in HARMLESS or key in harmless:
            break
        harmless.add(key)
        asked = asked.model_copy(update={key: HARMLESS[key]})
    if found:
        return found
    wanted = f"{site.gpus} GPUs, {site.time} min" if site.gpus else f"{site.time} min"
    text = f"partition {site.partition or '(default)'}, {wanted}: sbatch would take it"
    return [ok("job", text)]


def _key(error: SlurmError, site: SiteConfig, scratch: Path) -> str | None:
    """The key that an error is about; where it may be one of several, by leaving out each."""
    if AMBIGUOUS in error.text.lower():
        for key in OF_A_NODE:
            without = site.model_copy(update={key: HARMLESS[key]})
            if getattr(site, key) == HARMLESS[key]:
                continue
            other = _refused(without, scratch)
            if other is None or other.text != error.text:
                return key
    return blamed_key(error.text, site)


def _refused(site: SiteConfig, scratch: Path) -> SlurmError | None:
    """What sbatch says against a job of the site; None when it would take it."""
    from sparrow_lab.sweep.slurm.module_executor import ModuleExecutor

    chunk = Chunk("doctor", "doctor", str(scratch), str(scratch), ((),), grace=site.grace)
    executor = ModuleExecutor(chunk, site, "sparrow_lab.doctor.probe", str(scratch))
    script = scratch / "accepted.sh"
    write_text(script, executor.script())
    try:
        call(["sbatch", "--test-only", str(script)], limit_s=60)
    except SlurmError as error:
        return error
    return None
