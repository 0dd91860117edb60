"""`python -m tests.sweep.slurm.submit_fake FOLDER SITE`: submit a written plan of fakes."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from sparrow_lab.config.site import load_site
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import run_sweep
from sparrow_lab.sweep.slurm.cluster import Cluster
from tests.sweep import fakes


def main(folder: str, site: str) -> int:
    """Submit what the plan in `folder` still needs, as the command line does."""
    sweep = SweepFolder(Path(folder))
    cluster = Cluster(load_site(site), Path(site))
    options = Options(notes={"site": cluster.to_json()})
    try:
        return run_sweep(
            sweep, sweep.read_plan(), b"name: fake\n", options, Console(width=200),
            stages=fakes.STAGES, cluster=cluster,
        )  # fmt: skip
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
