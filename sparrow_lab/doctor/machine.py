"""Python, packages and the GPU's driver, without importing anything heavy."""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, version

from sparrow_lab.doctor.check import Check, fail, ok, warn
from sparrow_lab.sweep.gpu import driver_version, torch_build

PACKAGES = ("torch", "transformers", "peft", "pydantic", "submitit", "optuna", "mlflow")
LEAST_PYTHON = (3, 11)
LEAST_DRIVER = {11: (450, 80), 12: (525, 60), 13: (580, 65)}
"""First NVIDIA driver that runs programs built for a major version of CUDA."""


def check_python() -> Check:
    """The interpreter of this command, which workers use too."""
    mine = ".".join(map(str, sys.version_info[:3]))
    found = f"{mine} at {sys.executable}"
    if sys.version_info[:2] < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        return fail("python", found, f"install sparrow-lab into Python {least} or newer")
    return ok("python", found)


def check_packages() -> Check:
    """Whether everything that a worker or a submission imports is installed."""
    there, missing = [], []
    for name in PACKAGES:
        try:
            there.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        found = f"not installed: {', '.join(missing)}"
        return fail("packages", found, "install sparrow-lab again: pip install -e .")
    return ok("packages", ", ".join(there))


def check_driver() -> Check:
    """The NVIDIA driver against the CUDA that torch was built for."""
    return judge_driver(torch_cuda(), driver_version())


def judge_driver(cuda: str | None, driver: str | None) -> Check:
    """`cuda`: of torch, None for a CPU build. `driver`: None where there is no NVIDIA driver."""
    if driver is None:
        built = f"; torch was built for CUDA {cuda}" if cuda else ""
        found = f"no NVIDIA driver here: workers use the CPU, and model.device: cuda fails{built}"
        return ok("driver", found)
    if cuda is None:
        return warn(
            "driver",
            f"driver {driver}, but this torch was built without CUDA",
            "install a CUDA build of torch: see pytorch.org",
        )
    least = LEAST_DRIVER.get(int(cuda.split(".")[0]))
    if least is not None and _numbers(driver) < least:
        text = f"driver {driver} is too old for CUDA {cuda}, which torch was built for"
        wanted = ".".join(map(str, least))
        return fail(
            "driver", text, f"a driver from {wanted} on, or a torch built for an older CUDA"
        )
    return ok("driver", f"driver {driver} runs CUDA {cuda}, which torch was built for")


def torch_cuda() -> str | None:
    """The CUDA version of the installed torch, from its version file; None for a CPU build."""
    return torch_build().get("cuda")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
