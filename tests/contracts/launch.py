"""`python -m tests.contracts.launch FOLDER PLAN SITE [key=value]...`: one run of `sweep`.

As the command line does it, but with fake stages: PLAN is a file with the plan, SITE a site
file or `-` for this machine, the settings are those of `Options`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from sparrow_lab.config.site import load_site
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import run_sweep
from sparrow_lab.sweep.slurm.cluster import Cluster
from tests.sweep import fakes


def main(folder: str, plan_file: str, site: str, *settings: str) -> int:
    """The exit code of the run; 2 for what a user can put right."""
    values = {key: json.loads(value) for key, _, value in (s.partition("=") for s in settings)}
    plan = Plan.from_json(json.loads(Path(plan_file).read_text()))
    try:
        cluster = None if site == "-" else Cluster(load_site(site), Path(site))
        notes = {} if cluster is None else {"site": cluster.to_json()}
        options = Options.from_json({"parallel": 4, "grace_s": 20, "notes": notes, **values})
        return run_sweep(
            SweepFolder(Path(folder)),
            plan,
            b"name: fake\n",
            options,
            Console(width=200),
            stages=fakes.STAGES,
            cluster=cluster,
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
