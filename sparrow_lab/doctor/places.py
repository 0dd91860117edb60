"""Folders: whether they can be written, keep locks and time, and suit what is put there."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparrow_lab.doctor.check import Check, fail, ok, warn
from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import create_json
from sparrow_lab.sweep.guards import check_folder
from sparrow_lab.tracking.filesystem import network_kind
from sparrow_lab.tracking.store import resolve

SKEW_S = 2.0
"""Clocks that differ by more make ages of files wrong."""

CACHES = {
    "TRITON_CACHE_DIR": "~/.triton/cache",
    "TORCHINDUCTOR_CACHE_DIR": "",
}
"""Variables of caches of compiled kernels, and where they are without; empty: a local folder."""


def check_runs(root: Path) -> list[Check]:
    """The folder of all sweeps, or where it would be made."""
    folder = _existing(root)
    name = "runs folder"
    if not os.access(folder, os.W_OK):
        remedy = "give another with --runs or SPARROW_RUNS, or ask for write access"
        return [fail(name, f"{root}: {folder} cannot be written", remedy)]
    try:
        check_folder(folder)
    except UserError as error:
        remedy = "free some space there, or give another with --runs or SPARROW_RUNS"
        return [fail(name, f"{folder}: {error.message}", remedy)]
    kind = network_kind(folder)
    where = f"a network file system ({kind})" if kind else "a local file system"
    with _scratch(folder) as scratch:
        checks = [ok(name, f"{root} can be written, on {where}"), *_behaviour(scratch)]
    return checks


def _behaviour(scratch: Path) -> list[Check]:
    """What claims and locks are built on, tried on the file system itself."""
    checks = [check_clock(scratch)]
    one, two = (create_json(scratch / "claim.json", {"by": i}) for i in (1, 2))
    if (one, two) != (True, False):
        checks.append(
            fail(
                "exclusive files",
                "a file was created twice: two workers could claim one attempt",
                "use another file system for the runs",
            )
        )
    handle = os.open(scratch / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        checks.append(ok("file locks", "work on the runs folder"))
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, str(error))
        checks.append(
            warn(
                "file locks",
                f"the runs folder's file system has none ({name})",
                "start a sweep from one machine at a time",
            )
        )
    finally:
        os.close(handle)
    return checks


def check_clock(folder: Path) -> Check:
    """The clock of this machine against that of the folder's file system."""
    probe = folder / f".clock.{secrets.token_hex(4)}"
    before = time.time()
    probe.write_bytes(b"x")
    after, stamp = time.time(), probe.stat().st_mtime
    probe.unlink()
    return judge_skew(max(before - stamp, stamp - after, 0.0), "this machine")


def judge_skew(seconds: float, who: str) -> Check:
    """How far a clock is from the file system's."""
    if seconds <= SKEW_S:
        return ok("clock", f"{who} and the file system agree")
    found = f"{who} and the file system differ by {seconds:.0f} s"
    remedy = "ask for time synchronisation (NTP); until then times in tables are wrong"
    return (fail if seconds > 300 else warn)("clock", found, remedy)


def check_database(root: Path, uri: str | None = None) -> Check:
    """Where MLflow's records go."""
    try:
        store = resolve(root, uri)
    except UserError as error:
        return fail("mlflow", error.message, "see 'tracking:' in the experiment file")
    if store.is_server:
        return ok("mlflow", f"the server {store.uri}")
    if store.notices and not store.own:
        remedy = "put it on a local disk, or give the URI of a server"
        return warn("mlflow", store.notices[0], remedy)
    return ok("mlflow", store.notices[0] if store.notices else str(store.database or store.uri))


def check_old_store(root: Path) -> Check:
    """A folder `mlruns` of MLflow's old file store, which nothing here writes or reads."""
    places = dict.fromkeys(p.resolve() for p in (root, root.parent, Path.cwd()))
    for place in places:
        folder = place / "mlruns"
        if folder.is_dir() and any(folder.glob("*/meta.yaml")):
            return warn(
                "mlruns",
                f"{folder} is of MLflow's old file store: its runs do not show in the database",
                f"'mlflow migrate-filestore --help' says how to bring them into SQLite; "
                f"if they are not wanted, move {folder} away",
            )
    return ok("mlruns", "no folder of MLflow's old file store")


def check_caches() -> Check:
    """Caches of compiled kernels: on a network file system they go stale and block."""
    for variable, default in CACHES.items():
        text = os.environ.get(variable) or default
        if not text:
            continue
        place = Path(text).expanduser()
        kind = network_kind(_existing(place))
        if kind:
            return warn(
                "kernel cache",
                f"{place} is on a network file system ({kind})",
                f"set {variable} to a local folder; on a cluster 'cache:' in the site file does it",
            )
    return ok("kernel cache", "on a local disk")


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A hidden folder that is gone afterwards."""
    scratch = folder / f".doctor.{os.getpid()}.{secrets.token_hex(4)}"
    scratch.mkdir()
    try:
        yield scratch
    finally:
        for path in scratch.iterdir():
            path.unlink()
        scratch.rmdir()
