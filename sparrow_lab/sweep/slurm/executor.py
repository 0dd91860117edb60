"""submitit's Slurm executor, made to start our own worker.

submitit writes the batch script and knows sbatch's options. Its pickles are not used: they
are moved into place after sbatch, so that a kill in between leaves a job without its task.
This module imports submitit; it is imported when something is submitted.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from submitit.slurm.slurm import SlurmExecutor

from sparrow_lab.config.site import SiteConfig, derived_cpus
from sparrow_lab.runs.atomic import write_text
from sparrow_lab.sweep.slurm import start
from sparrow_lab.sweep.slurm.chunk import SCRIPT, Chunk
from sparrow_lab.sweep.slurm.programs import call
from sparrow_lab.sweep.slurm.squeue import job_name

SIGNAL = "USR2"
_ID = re.compile(r"^([0-9]+)(?:;\S+)?\s*$", re.MULTILINE)
_SENTENCE = re.compile(r"^Submitted batch job ([0-9]+)", re.MULTILINE)


class ArrayExecutor(SlurmExecutor):
    """One array of one chunk. `send` writes the script and calls sbatch once."""

    def __init__(
        self, chunk: Chunk, site: SiteConfig, threads: int, dependency: str, throttle: int | None
    ) -> None:
        super().__init__(folder=chunk.folder, max_num_timeout=0)
        self._chunk = chunk
        self.update_parameters(**_parameters(chunk, site, threads, dependency, throttle))

    @classmethod
    def affinity(cls) -> int:
        """Always usable: whether sbatch is there is said when it is called."""
        return 2

    def send(self) -> str | None:
        """Call sbatch; the id of the array, or None when what it printed holds none.

        Raises SlurmError.
        """
        script = self._chunk.folder / SCRIPT
        write_text(script, self._make_submission_file_text(self._submitit_command_str, ""))
        return read_id(call(self._make_submission_command(script)))

    @property
    def _submitit_command_str(self) -> str:
        chunk = shlex.quote(str(self._chunk.folder))
        return f"{self.python} -u -m sparrow_lab.sweep.slurm {chunk}"

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return ["sbatch", "--parsable", str(submission_file_path)]


def _parameters(
    chunk: Chunk, site: SiteConfig, threads: int, dependency: str, throttle: int | None
) -> dict[str, Any]:
    count = len(chunk.elements)
    cpus = derived_cpus(site, threads)
    limit = f"%{throttle}" if throttle and throttle < count else ""
    # one log an element, whatever number its job has: also when it is started again
    log = str(chunk.folder / "%a.log")
    more: dict[str, Any] = {"array": f"0-{count - 1}{limit}", "output": log}
    if site.mem:
        more["mem"] = site.mem
    if site.reservation:
        more["reservation"] = site.reservation
    if site.gpus:
        more["gres"] = f"gpu:{site.gpus}"
    more["requeue"] = True
    extra = {k: v for k, v in site.extra.items() if v is not False}
    given = {
        "partition": site.partition,
        "account": site.account,
        "qos": site.qos,
        "constraint": site.constraint,
        "exclude": site.exclude,
        "dependency": dependency or None,
    }
    return {
        "job_name": job_name(chunk.token),
        "time": site.time,
        "cpus_per_task": cpus,
        "signal_delay_s": site.grace,
        "stderr_to_stdout": True,
        "setup": [
            *start.first_lines(chunk),
            *site.setup,
            *start.lines_before_worker(chunk),
            *_environment(chunk),
        ],
        "teardown": start.last_lines(chunk) or None,
        "additional_parameters": {**more, **extra},
        # a step does not take over the CPUs of its job by itself; MPI is not used
        "srun_args": [
            "--cpus-per-task",
            str(cpus),
            "--mpi=none",
            "--open-mode=append",
            "--output",
            log,
        ],
        "wckey": None,
        **{k: v for k, v in given.items() if v is not None},
    }


def _environment(chunk: Chunk) -> list[str]:
    """The submitted code goes first; the folder where sbatch was called is not searched."""
    code = shlex.quote(chunk.code)
    return [f'export PYTHONSAFEPATH=1 PYTHONPATH={code}"${{PYTHONPATH:+:$PYTHONPATH}}"']


def read_id(said: str) -> str | None:
    """The number in sbatch's stdout: `123` or `123;cluster`, or in its sentence; else None.

    A site may print a greeting before it; only a line of its own counts.
    """
    found = _ID.findall(said) or _SENTENCE.findall(said)
    return str(found[-1]) if found else None
