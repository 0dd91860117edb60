"""All checks, in the order in which they matter; each is shown as soon as it is made."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from sparrow_lab.doctor import cluster, machine, places
from sparrow_lab.doctor.accepted import check_accepted
from sparrow_lab.doctor.check import Check


def examine(root: Path, site: Path | None = None, wait_s: float = 60.0) -> Iterator[Check]:
    """Check this machine, and with a site file the cluster and one of its nodes.

    Args:
        root: the folder of all sweeps.
        site: the site file.
        wait_s: how long a small job on a node is waited for; 0 submits none.
    """
    yield machine.check_python()
    yield machine.check_packages()
    if site is None:
        yield machine.check_driver()
    there = places.check_runs(root)
    yield from there
    yield places.check_database(root)
    yield places.check_old_store(root)
    yield places.check_caches()
    if site is not None:
        yield from _cluster(root, site, wait_s, there[0].level != "fail")


def _cluster(root: Path, file: Path, wait_s: float, writable: bool) -> Iterator[Check]:
    site, check = cluster.check_site(file)
    yield check
    yield (programs := cluster.check_programs())
    if site is None or programs.level == "fail":
        return
    yield (answers := cluster.check_answers())
    yield cluster.check_accounting()
    if answers.level == "fail" or not writable:
        return
    yield cluster.check_arrays(site)
    scratch = root.absolute() / f".doctor-{secrets.token_hex(4)}"
    made = not root.exists()
    scratch.mkdir(parents=True)
    try:
        yield from (accepted := check_accepted(site, scratch))
        yield from cluster.check_partition(site)
        if all(check.level != "fail" for check in accepted) and wait_s > 0:
            from sparrow_lab.doctor.node import check_node

            yield from check_node(site, scratch, wait_s)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if made and root.is_dir() and not any(root.iterdir()):
            root.rmdir()
