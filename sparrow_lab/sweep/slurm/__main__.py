"""`python -m sparrow_lab.sweep.slurm FOLDER`: what Slurm starts, with the chunk's folder.

Nothing is imported before the stop signals are blocked: one that comes while this starts waits
until there is somebody to take it.
"""

from __future__ import annotations

import sys

from sparrow_lab.runs.process import shielded

if __name__ == "__main__":
    with shielded():
        from pathlib import Path

        from sparrow_lab.sweep.slurm.allocation import Allocation
        from sparrow_lab.sweep.slurm.chunk import read_chunk
        from sparrow_lab.sweep.slurm.element import Element

        element = Element(read_chunk(Path(sys.argv[1])), Allocation.here())
        code = element.run()
    sys.exit(code)
