"""What these tests share: a site of the pretended cluster, and submitting plans of fakes to it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.config.site import SiteConfig, load_site
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.slurm.send import Submitted
from sparrow_lab.sweep.slurm.submit import submit
from sparrow_lab.sweep.states import read_states
from tests.sweep import fakes
from tests.sweep.watching import wait_until

ROOT = Path(__file__).parents[3]
SITE = "gpus: 1\ncpus: 1\ntime: 10\ngrace: 10\ncache: null\n"


@pytest.fixture(autouse=True)
def _workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))


@dataclasses.dataclass
class Handed:
    """A sweep in a folder and the site that it is handed to; `say` collects what is said."""

    sweep: SweepFolder
    site: SiteConfig
    said: list[str] = dataclasses.field(default_factory=list)

    def submit(self, **options: Any) -> Submitted:
        """As the command line does, without its lock: only one of these runs at a time."""
        made = Options(**{"retries": 1, **options})
        return submit(self.sweep, self.site, made, self.said.append, fakes.STAGES)

    def states(self) -> dict[str, str]:
        return {i: s.state for i, s in read_states(self.sweep).items()}

    def reasons(self) -> dict[str, str]:
        return {i: s.reason for i, s in read_states(self.sweep).items()}

    def wait(self, seconds: float = 90, **wanted: str) -> None:
        """Wait until points have these states."""
        wait_until(lambda: {i: self.states()[i] for i in wanted} == wanted, seconds)

    def over(self, seconds: float = 120) -> dict[str, str]:
        """Wait until nothing of it waits or runs; the states then."""
        busy = {"submitted", "pending", "running"}
        wait_until(lambda: not busy & set(self.states().values()), seconds)
        return self.states()


HandIn = Callable[..., Handed]


@pytest.fixture
def hand_in(tmp_path: Path) -> HandIn:
    """Write a plan and a site file; the texts of `site` go above the usual ones."""

    def make(plan: Plan, **site: Any) -> Handed:
        sweep = SweepFolder(tmp_path / "runs" / plan.name)
        sweep.write_plan(plan)
        usual = dict(line.split(": ") for line in SITE.splitlines())
        lines = {**usual, **{k: str(v) for k, v in site.items()}}
        file = tmp_path / "site.yaml"
        file.write_text("".join(f"{k}: {v}\n" for k, v in lines.items()))
        return Handed(sweep, load_site(file))

    return make
