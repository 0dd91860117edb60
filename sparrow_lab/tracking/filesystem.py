"""Is a path on a network file system? SQLite must not live there: its locks do not hold."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NETWORK = {"nfs", "nfs3", "nfs4", "lustre", "beegfs", "gpfs", "ceph", "afs", "panfs", "wekafs"}
NETWORK |= {"cifs", "smb", "smb2", "smb3", "smbfs", "9p", "acfs", "pvfs2", "orangefs", "daos"}
NETWORK |= {"glusterfs", "quobyte", "moosefs"}
"""File systems that several machines share; mounted through FUSE (`fuse.ceph`) they count too."""
NETWORK_FUSE = {"sshfs", "s3fs", "rclone", "juicefs", "gcsfuse", "blobfuse", "dfuse", "goofys"}


class Mount(NamedTuple):
    """Where a file system is mounted, and its kind."""

    point: str
    kind: str


def mounts() -> list[Mount]:
    """All mounts of this machine; empty where the system does not tell."""
    import psutil

    try:
        return [Mount(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)]
    except OSError:
        return []


def network_kind(path: Path, known: Sequence[Mount] | None = None) -> str | None:
    """The kind of network file system that `path` lies (or would lie) on; None if it is local."""
    real = os.path.realpath(path)
    best = Mount("", "")
    for mount in mounts() if known is None else known:
        root = mount.point.rstrip("/") or "/"
        inside = root == "/" or real == root or real.startswith(root + "/")
        if inside and len(mount.point) >= len(best.point):
            best = mount
    kind = best.kind.lower()
    name = kind.removeprefix("fuse.")
    shared = name in NETWORK or (kind.startswith("fuse") and name in NETWORK_FUSE)
    return kind if shared else None


def local_folder(root: Path, known: Sequence[Mount] | None = None) -> Path:
    """A folder of this user on a local disk, one for each runs folder `root`.

    The cache folder ($XDG_CACHE_HOME or ~/.cache) where that is local, else the temporary
    folder: a cluster's home is often a network file system as well.
    """
    real = Path(os.path.realpath(root))
    key = f"{real.name}-{hashlib.sha256(str(real).encode()).hexdigest()[:8]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if network_kind(cache, known) is None:
        return cache / "sparrow-lab" / "mlflow" / key
    return Path(tempfile.gettempdir()) / f"sparrow-lab-{os.getuid()}" / "mlflow" / key
