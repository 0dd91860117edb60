"""`python -m sparrow_lab.sweep.search FOLDER`: the controller of an adaptive sweep, as a job.

Nothing is imported before the stop signals are blocked: one that comes while this starts waits
until there is somebody to take it.
"""

from __future__ import annotations

import sys

from sparrow_lab.runs.process import shielded

if __name__ == "__main__":
    with shielded():
        from pathlib import Path

        from sparrow_lab.runs.layout import SweepFolder
        from sparrow_lab.sweep.search.job import run_job

        folder = SweepFolder(Path(sys.argv[1]).resolve())
    sys.exit(run_job(folder))
