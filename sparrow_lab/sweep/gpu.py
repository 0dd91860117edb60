"""Points that ask for a GPU, and what can be known of one without torch.

Only what is certain is refused before anything starts: a worker finds out the rest, at its start.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.plan import PlannedPoint

DEVICE_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""One of these is there where a driver is: NVIDIA's, its form under Windows, AMD's."""


def wants_gpu(point: PlannedPoint) -> bool:
    """Whether the point's model is to be on a GPU."""
    model = point.config.get("model")
    return isinstance(model, dict) and model.get("device") == "cuda"


def check_gpus(points: Iterable[PlannedPoint], site: SiteConfig | None) -> None:
    """Refuse points that ask for a GPU where they will certainly get none.

    Args:
        site: the cluster that they are for, whose GPUs cannot be seen from here; None runs them on
            this machine.

    Raises:
        UserError: it names what is missing and what can be changed.
    """
    asking = sum(map(wants_gpu, points))
    if not asking:
        return
    whose = "1 point asks" if asking == 1 else f"{asking} points ask"
    if site is not None:
        if not site.gpus:
            text = f"a job of this site has no GPU, and {whose} for one (model.device: cuda)"
            raise UserError(f"{text}; allowed: gpus: 1, or model.device: cpu", site.where("gpus"))
    elif missing := missing_here():
        raise UserError(
            f"{whose} for a GPU (found cuda), but {missing}; allowed here: cpu, or a cluster with "
            "--site",
            "model.device",
        )


def missing_here() -> str:
    """Why no worker on this machine can have a GPU; empty where one may."""
    built_for = torch_build()
    if "hip" in built_for:
        return ""
    if "cuda" not in built_for:
        return "the torch that is installed was built without CUDA"
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    if any(Path(file).exists() for file in DEVICE_FILES) or driver_version() is not None:
        return ""
    return "this machine has no NVIDIA driver"


def torch_build() -> dict[str, str]:
    """What the installed torch was built for, from its version file: `cuda` or `hip` with its
    version; empty for a CPU build, and without torch.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return {}
    found = re.findall(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return dict(found)


def driver_version() -> str | None:
    """What nvidia-smi says; None where it is not there or sees no GPU."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None
