"""`python -m tests.sweep.launch_fake FOLDER [key=value]...`: run a written plan of fakes."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.run import run_sweep
from tests.sweep import fakes


def main(folder: str, *settings: str) -> int:
    """Run the plan in `folder`; settings are those of `Options`."""
    sweep = SweepFolder(Path(folder))
    values = dict(text.split("=") for text in settings)
    numbers = {key: float(value) if "." in value else int(value) for key, value in values.items()}
    options = Options.from_json({"parallel": 2, "grace_s": 20, **numbers})
    try:
        plan = sweep.read_plan()
        return run_sweep(sweep, plan, b"name: fake\n", options, Console(), stages=fakes.STAGES)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
