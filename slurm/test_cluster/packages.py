"""The Debian packages of the cluster, installed without letting any of them start a daemon."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

PACKAGES = (
    "munge",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmdbd",
    "slurm-wlm-mysql-plugin",
    # The server without its service, its system user and the packages that come with those.
    "mariadb-server-core",
    "mariadb-client-core",
)

POLICY = Path("/usr/sbin/policy-rc.d")
"""Debian's installation scripts ask this program before they start a daemon."""


def missing() -> list[str]:
    """Those of the packages that are not installed."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *PACKAGES]
    listed = subprocess.run(query, capture_output=True, text=True).stdout
    installed = {line.split()[0] for line in listed.splitlines() if line.endswith(" installed")}
    return [name for name in PACKAGES if name not in installed]


def install(names: list[str], log: Path) -> None:
    """Install packages. Raises RuntimeError with apt's last lines when that fails."""
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=120"]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    made_policy = not POLICY.exists()
    if made_policy:
        POLICY.write_text("#!/bin/sh\nexit 101\n")
        POLICY.chmod(0o755)
    try:
        with log.open("w") as out:
            for command in ([*apt, "update"], [*apt, "install", "--no-install-recommends", *names]):
                if subprocess.run(command, env=env, stdout=out, stderr=out).returncode:
                    tail = "\n".join(log.read_text().splitlines()[-20:])
                    raise RuntimeError(f"{' '.join(command)} failed\n{tail}")
    finally:
        if made_policy:
            POLICY.unlink()
