"""`python -m tests.sweep.search.on_fake FILE RUNS SITE`: submit a search with fake stages."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from sparrow_lab.config.load import load_sweep
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import run_sweep
from sparrow_lab.sweep.search.controller import Controller
from sparrow_lab.sweep.slurm.cluster import make_cluster
from tests.sweep.search.stages import STAGES

POLL_S = 0.5


def submit(file: Path, runs: Path, site: Path, *overrides: str) -> int:
    """As the command line does it, with fake stages and quick rounds; the exit code."""
    config = load_sweep(file, overrides)
    sweep = SweepFolder(runs / config.name)
    search = Controller(sweep, config, file.parent)
    cluster = make_cluster(site, False, config.launch, None, False)
    options = Options(retries=config.launch.retries, notes={"poll_s": POLL_S})
    try:
        return run_sweep(
            sweep,
            search.plan_ahead(),
            file.read_bytes(),
            options,
            Console(width=200),
            stages=STAGES,
            cluster=cluster,
            search=search,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(submit(*(Path(a) for a in sys.argv[1:4]), *sys.argv[4:]))
