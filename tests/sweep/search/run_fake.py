"""`python -m tests.sweep.search.run_fake FILE RUNS`: run an adaptive sweep with fake stages."""

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
from tests.sweep.search.stages import STAGES


def run(file: Path, runs: Path, *overrides: str) -> int:
    """As the command line does it, with fake stages; the exit code."""
    config = load_sweep(file, overrides)
    sweep = SweepFolder(runs / config.name)
    search = Controller(sweep, config, file.parent)
    options = Options(
        parallel=config.launch.parallel or 2, retries=config.launch.retries, grace_s=20
    )
    try:
        return run_sweep(
            sweep,
            search.plan_ahead(),
            file.read_bytes(),
            options,
            Console(),
            stages=STAGES,
            search=search,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
