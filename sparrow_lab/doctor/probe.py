"""`python -m sparrow_lab.doctor.probe FOLDER`: looks at its node and writes that down."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from sparrow_lab.doctor.machine import torch_cuda
from sparrow_lab.runs.atomic import write_json
from sparrow_lab.sweep.gpu import driver_version
from sparrow_lab.tracking.filesystem import network_kind

REPORT = "node.json"


def look(folder: Path) -> dict[str, Any]:
    """What the checks of a node are made from."""
    before = time.time()
    mark = folder / "mark"
    mark.write_bytes(b"x")
    stamp = mark.stat().st_mtime
    cache = os.path.expandvars(os.environ.get("DOCTOR_CACHE", "/tmp"))
    return {
        "host": platform.node(),
        "python": list(sys.version_info[:3]),
        "executable": sys.executable,
        "skew": max(before - stamp, stamp - time.time(), 0.0),
        "cuda": torch_cuda(),
        "driver": driver_version(),
        "sbatch": shutil.which("sbatch") is not None,
        "cache": cache,
        "cache_kind": network_kind(Path(cache)),
        "cache_there": os.access(cache, os.W_OK),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_json(target / REPORT, look(target))
