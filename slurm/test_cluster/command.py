"""The command line: start, stop, status."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from . import cluster, daemons, packages
from .settings import Settings, make_folders

DEFAULT_STATE = "/tmp/sparrow-slurm"


def main() -> int:
    """Exit code: 0 when it did what was asked; status gives 3 when not everything runs."""
    arguments = parser().parse_args()
    state = Path(arguments.state).absolute()
    if os.geteuid() != 0:
        print("error: the test cluster is started and stopped as root", file=sys.stderr)
        return 2
    try:
        return {"start": _start, "stop": _stop, "status": _status}[arguments.do](arguments, state)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The words and options that are understood."""
    top = argparse.ArgumentParser(prog="test-cluster", description="A real Slurm for tests.")
    commands = top.add_subparsers(dest="do", required=True)
    start = commands.add_parser("start", help="start it, or what of it does not run")
    stop = commands.add_parser("stop", help="end its jobs and daemons")
    status = commands.add_parser("status", help="say what runs")
    for command in (start, stop, status):
        command.add_argument("--state", default=DEFAULT_STATE, help="its folder (%(default)s)")
    size = Settings(Path())
    start.add_argument("--nodes", type=int, help=f"how many nodes ({size.nodes})")
    start.add_argument("--gpus", type=int, help=f"pretend GPUs a node ({size.gpus})")
    start.add_argument("--port", type=int, help=f"first of nodes + 3 ports ({size.port})")
    start.add_argument("--max-array", type=int, help=f"Slurm's MaxArraySize ({size.max_array})")
    stop.add_argument("--wipe", action="store_true", help="remove its folder too")
    status.add_argument("--json", action="store_true", help="the daemons' pids as JSON")
    return top


def _start(arguments: argparse.Namespace, state: Path) -> int:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:5.1f} s] {text}", flush=True)

    needed = packages.missing()
    state.mkdir(parents=True, exist_ok=True)
    with _locked(state):
        if needed:
            say(f"installing {' '.join(needed)}")
            packages.install(needed, state / "apt.log")
        asked = {k: getattr(arguments, k) for k in ("nodes", "gpus", "port", "max_array")}
        known = Settings.load(state)
        given = {k: v for k, v in asked.items() if v is not None}
        settings = Settings(**{**known.__dict__, **given})
        make_folders(settings)
        settings.save()
        cluster.start(settings, say)
    say(f"ready; to use it: . {state}/env.sh")
    return 0


def _stop(arguments: argparse.Namespace, state: Path) -> int:
    if not state.is_dir():
        print(f"no cluster in {state}")
        return 0
    with _locked(state):
        settings = Settings.load(state)
        cluster.stop(settings)
        if arguments.wipe:
            cluster.unlink_default(settings)
            shutil.rmtree(state)
    print("stopped" + (" and removed" if arguments.wipe else ""))
    return 0


def _status(arguments: argparse.Namespace, state: Path) -> int:
    settings = Settings.load(state)
    pids = {name: daemons.pid_of(settings, name) for name in cluster.names(settings)}
    if arguments.json:
        print(json.dumps(pids))
    else:
        for name, pid in pids.items():
            print(f"{name:12} {'not running' if pid is None else f'pid {pid}'}")
        if None not in pids.values():
            print(cluster.node_lines(settings), end="")
    return 3 if None in pids.values() else 0


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    """Keep a second start or stop of the same cluster waiting."""
    with (state / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
