"""Which line of the site file made sbatch refuse."""

from __future__ import annotations

import re

from sparrow_lab.config.site import SiteConfig
from sparrow_lab.errors import UserError
from sparrow_lab.sweep.slurm.programs import SlurmError

AMBIGUOUS = "node configuration"
"""`Requested node configuration is not available`: GPUs, memory, CPUs, or what kind of node."""

CAUSES: tuple[tuple[str, str], ...] = (
    (r"partition", "partition"),
    (r"account", "account"),
    (r"qos", "qos"),
    (r"reservation", "reservation"),
    (r"time limit", "time"),
    (r"feature|constraint", "constraint"),
    (r"generic resource|gres|gpu", "gpus"),
    (r"memory", "mem"),
    (r"invalid node name|exclude", "exclude"),
    (r"array", "array_cap"),
    (r"unrecognized option|invalid option|unknown option", "extra"),
    (r"cpu count|cpus per|more processors|cpu", "cpus"),
    (AMBIGUOUS, "gpus"),
)
"""What sbatch says, in the order in which it is looked for, and the key that it is about."""


def blamed_key(text: str, site: SiteConfig) -> str | None:
    """The key of the site that a message of sbatch is about; None when it is about none.

    `Invalid account or account/partition combination` is about the account unless none is
    given. A node that cannot be had is about the GPUs, or what else of a node is asked for.
    """
    lower = text.lower()
    if "account/partition" in lower:
        return "account" if site.account else "partition"
    if "policy" in lower or ("limit" in lower and "time limit" not in lower):
        return None  # too many jobs, or too large a one, for this user: no key is wrong
    for pattern, key in CAUSES:
        if re.search(pattern, lower):
            if key == "gpus" and not site.gpus:
                return "mem" if site.mem else "cpus"
            return key
    return None


def refusal(error: SlurmError, site: SiteConfig, what: str) -> UserError:
    """sbatch's own words with the place in the site file, and what was submitted before."""
    key = blamed_key(error.text, site)
    where = site.where(key) if key else site.where("")
    named = f"{key}: " if key else ""
    if AMBIGUOUS in error.text.lower() and site.file:
        what += f"; 'sparrow-lab doctor --site {site.file}' finds whether another key is to blame"
    return UserError(f"{named}{error.program} says '{error.text}'; {what}", where or None)
