"""Sending arrays to Slurm one by one: into the ledger, to sbatch, and its answer into the ledger.

A refusal ends it; while Slurm only does not answer it waits and tries again, and looks first
whether the array was taken all the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm import start
from sparrow_lab.sweep.slurm.arrange import Made, Part
from sparrow_lab.sweep.slurm.blame import refusal
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.limits import Limits
from sparrow_lab.sweep.slurm.programs import SlurmError
from sparrow_lab.sweep.slurm.snapshot import take_snapshot
from sparrow_lab.sweep.slurm.squeue import Queue, read_queue
from sparrow_lab.sweep.workers import threads_of

BACKOFF_S = (2.0, 5.0, 15.0, 30.0, 60.0)
"""Waits between tries while Slurm does not answer."""


@dataclass
class Submitted:
    """What came of a submission: arrays by number with their count of points."""

    arrays: list[tuple[str, int]] = field(default_factory=list)

    @property
    def points(self) -> int:
        return sum(count for _, count in self.arrays)

    def __str__(self) -> str:
        if not self.arrays:
            return "nothing"
        jobs = ", ".join(job for job, _ in self.arrays[:12])
        more = f" and {len(self.arrays) - 12} more" if len(self.arrays) > 12 else ""
        arrays = "1 array" if len(self.arrays) == 1 else f"{len(self.arrays)} arrays"
        points = "1 point" if self.points == 1 else f"{self.points} points"
        return f"{points} in {arrays} (job {jobs}{more})"


class Sender:
    """Sends the parts of one arrangement, in order."""

    def __init__(
        self,
        sweep: SweepFolder,
        site: SiteConfig,
        options: Options,
        limits: Limits,
        say: Callable[[str], None],
        stages: Mapping[str, str] | None,
    ) -> None:
        self.sweep = sweep
        self.site = site
        self.options = options
        self.limits = limits
        self.say = say
        self.stages = stages
        self.ledger = Ledger(sweep.ledger_path)
        self.jobs: list[str] = []
        self.done = Submitted()

    def send(self, parts: Sequence[Part]) -> Submitted:
        """Submit all; UserError at the first that is refused."""
        code = take_snapshot(self.sweep)
        for i, part in enumerate(parts):
            count = sum(len(e.points) for e in part.elements)
            token = secrets.token_hex(8)
            chunk = self._chunk(part, token, code)
            start.prepare(chunk)
            chunk.write()
            self.ledger.append(
                "submitting",
                token=token,
                stage=part.stage,
                elements=[list(e.ids) for e in part.elements],
                canary=part.is_canary,
                code=code.name,
                start=chunk.start,
            )
            try:
                job = self._sbatch(chunk, part)
            except SlurmError as error:
                self.ledger.append("refused", token=token, reason=str(error))
                left = sum(len(e.points) for p in parts[i:] for e in p.elements)
                what = f"submitted before it: {self.done}; {left} points stay planned"
                raise refusal(error, self.site, what) from error
            self.ledger.append("submitted", token=token, job=job)
            self.jobs.append(job)
            self.done.arrays.append((job, count))
        return self.done

    def _chunk(self, part: Part, token: str, code: Path) -> Chunk:
        return Chunk(
            token=token,
            stage=part.stage,
            sweep=str(self.sweep.path),
            code=str(code),
            elements=tuple(e.ids for e in part.elements),
            canary=part.canary,
            start=start.start_key(self.site, code),
            waits=bool(part.after or part.after_parts or part.after_jobs),
            retries=self.options.retries,
            grace=self.site.grace,
            kill_wait=self.limits.kill_wait,
            on_preempt=self.site.on_preempt,
            requeues=self.site.requeues,
            limit_s=max(0.0, 60.0 * self.site.time - self.site.grace),
            cache=self.site.cache,
            stages=self.stages,
            site=self.site.model_dump(mode="json"),
        )

    def _sbatch(self, chunk: Chunk, part: Part) -> str:
        """Call sbatch until it takes the array; its number. Raises SlurmError."""
        from sparrow_lab.sweep.slurm.executor import ArrayExecutor

        points = [p for e in part.elements for p in e.points]
        threads = max(threads_of(p) for p in points)
        dependency = self._dependency(part)
        waits = list(BACKOFF_S)
        while True:
            try:
                executor = ArrayExecutor(chunk, self.site, threads, dependency, self.site.throttle)
                job = executor.send()
                if job is None and not (job := _find(chunk.token)):
                    raise SlurmError("sbatch", "it printed no job id", False)
                return job
            except SlurmError as error:
                if "dependency" in error.text.lower() and dependency:
                    # what it waits for has ended and been forgotten meanwhile
                    shorter = self._dependency(part, read_queue())
                    if shorter != dependency:
                        dependency = shorter
                        continue
                if not error.passing or not waits:
                    raise
                self.say(f"sbatch: {error.text}; trying again in {waits[0]:g} s")
                time.sleep(waits.pop(0))
                if job := _find(chunk.token):  # it was taken although the answer was lost
                    return job

    def _dependency(self, part: Part, queue: Queue | None = None) -> str:
        """`afterany:120:121_4`; with a queue, only of what is in it."""
        names = [self._name(made) for made in part.after]
        names += [self.jobs[i] for i in part.after_parts]
        names += part.after_jobs
        if queue is not None and not queue.error:
            known = {q.job for q in queue.elements.values()}
            known |= {q.array for q in queue.elements.values()}
            names = [n for n in names if n in known]
        return "afterany:" + ":".join(dict.fromkeys(names)) if names else ""

    def _name(self, made: Made) -> str:
        return f"{self.jobs[made.part]}_{made.index}"


def _find(token: str) -> str:
    """The number of the array with this token in the queue; empty when there is none."""
    found = read_queue().of(token)
    return found[0].array if found else ""
