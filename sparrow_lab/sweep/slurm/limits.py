"""What a cluster says of its own limits. A cluster that does not tell has the usual ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.sweep.slurm.programs import SlurmError, call

USUAL_ARRAY = 1001
"""Slurm's own default of MaxArraySize; indices stay below it."""
USUAL_KILL_WAIT = 30


@dataclass(frozen=True)
class Limits:
    """`array`: most elements of an array whose first index is 0; `kill_wait`: seconds between
    TERM and KILL at a cancellation; `told`: whether the cluster answered."""

    array: int = USUAL_ARRAY
    kill_wait: int = USUAL_KILL_WAIT
    told: bool = False


def read_limits(site: SiteConfig) -> Limits:
    """Ask `scontrol show config`; what the site file states goes before it."""
    try:
        text = call(["scontrol", "show", "config"], limit_s=30)
    except SlurmError:
        return Limits(array=site.array_cap or USUAL_ARRAY)
    largest = _number(text, "MaxArraySize", USUAL_ARRAY)
    return Limits(
        array=max(1, min(site.array_cap or largest, largest)),
        kill_wait=_number(text, "KillWait", USUAL_KILL_WAIT),
        told=True,
    )


def _number(text: str, key: str, default: int) -> int:
    match = re.search(rf"^{key}\s*=\s*([0-9]+)", text, re.MULTILINE)
    return int(match[1]) if match else default
