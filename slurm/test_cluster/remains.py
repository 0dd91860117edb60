"""Processes of jobs that outlived their node's daemon: found by what the kernel says of them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from .settings import Settings


def kill(settings: Settings) -> None:
    """SIGKILL every process of the cluster's jobs, and then what watches over them."""
    for find in (_jobs, _watchers):
        for pid in find(settings):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _jobs(settings: Settings) -> Iterator[int]:
    """Processes with a job's environment of this cluster, detached ones too."""
    ours = f"SLURM_CONF={settings.slurm_conf}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "environ").read_bytes().split(b"\0")
            if ours in words and any(word.startswith(b"SLURM_JOB_ID=") for word in words):
                yield int(folder.name)


def _watchers(settings: Settings) -> Iterator[int]:
    """The slurmstepd processes that have a socket in the spool folder of one of our nodes.

    They overwrite their environment with their title, and belong to nobody after slurmd.
    """
    spool = f" {settings.state}/spool."
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    sockets = {f"socket:[{line.split()[6]}]" for line in lines if spool in line}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if not (folder / "exe").readlink().name.startswith("slurmstepd"):
                continue
            if any(os.readlink(handle) in sockets for handle in (folder / "fd").iterdir()):
                yield int(folder.name)
