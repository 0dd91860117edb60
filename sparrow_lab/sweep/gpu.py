"""Points that ask for a GPU, and what can be known of one without torch.

Only what is certain is refused before anything starts: a worker finds out the rest, at its start.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Sized
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
    asking = list(filter(wants_gpu, points))
    if asking and site is not None and not site.gpus:
        text = f"a job of this site has no GPU, and {_whose(asking)} for one (model.device: cuda)"
        raise UserError(f"{text}; allowed: gpus: 1, or model.device: cpu", site.where("gpus"))
    if site is None and (refusal := refusal_here(asking)):
        raise UserError(refusal, "model.device")


def refusal_here(points: Iterable[PlannedPoint]) -> str:
    """Why this machine would not begin these points; empty where it may."""
    asking = list(filter(wants_gpu, points))
    if not asking or not (missing := missing_here()):
        return ""
    text = f"{_whose(asking)} for a GPU (found cuda), but {missing}"
    return f"{text}; allowed here: cpu, or a cluster with --site"


def _whose(asking: Sized) -> str:
    return "1 point asks" if len(asking) == 1 else f"{len(asking)} points ask"


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
