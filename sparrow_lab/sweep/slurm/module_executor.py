"""The batch script of one job that is no element of a sweep: an array of one, another program."""

from __future__ import annotations

import shlex

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.sweep.slurm.chunk import Chunk
from sparrow_lab.sweep.slurm.executor import ArrayExecutor


class ModuleExecutor(ArrayExecutor):
    """Starts `python -m MODULE ARGUMENT` with the set-up lines and options of the site."""

    def __init__(self, chunk: Chunk, site: SiteConfig, module: str, argument: str) -> None:
        super().__init__(chunk, site, 1, "", None)
        self._words = f"{module} {shlex.quote(argument)}"

    def script(self) -> str:
        """The batch script, for `sbatch --test-only`."""
        return str(self._make_submission_file_text(self._submitit_command_str, ""))

    @property
    def _submitit_command_str(self) -> str:
        return f"{self.python} -u -m {self._words}"


def small_site(site: SiteConfig, **changes: object) -> SiteConfig:
    """The site for a job that needs no GPU and next to no memory."""
    memory = "2G" if site.mem else None
    update = {"gpus": 0, "cpus": 1, "mem": memory, "constraint": None, **changes}
    return site.model_copy(update=update)
