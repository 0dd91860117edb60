"""The cluster as a whole: its daemons in order, ready nodes, and an end that leaves nothing."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import accounting, daemons, remains
from .daemons import Daemon
from .settings import Settings, secret, write_configs

DEFAULT_CONF = Path("/etc/slurm/slurm.conf")
"""Where Slurm looks without $SLURM_CONF: some tools start its programs without it."""


def names(settings: Settings) -> list[str]:
    """The daemons in the order in which they start."""
    nodes = [f"slurmd.{node}" for node in settings.node_names]
    return ["munged", "mariadbd", "slurmdbd", "slurmctld", *nodes]


def start(settings: Settings, say: Callable[[str], None]) -> None:
    """Start what does not run. Raises ClusterError when something does not come up."""
    own_names = daemons.can_name(settings)
    if not own_names:
        say("warning: no namespaces here, so Slurm listens on every interface")
    if write_configs(settings, own_names):
        for name in reversed(names(settings)[2:]):
            daemons.stop(settings, name)
    os.environ["SLURM_CONF"] = str(settings.slurm_conf)
    _link_default(settings, say)
    _start_munged(settings, own_names)
    accounting.create_database(settings)
    accounting.start_database(settings, own_names)
    accounting.start_slurmdbd(settings, own_names)
    say("accounting is up")
    daemons.start(settings, Daemon("slurmctld", ("slurmctld", "-D")), own_names)
    daemons.wait_for(
        settings, "slurmctld", "slurmctld does not answer", 30,
        lambda: daemons.answers("scontrol", "ping"),
    )  # fmt: skip
    for node in settings.node_names:
        (settings.state / f"spool.{node}").mkdir(exist_ok=True)
        slurmd = Daemon(f"slurmd.{node}", ("slurmd", "-D", "-N", node), host=node)
        daemons.start(settings, slurmd, own_names)
    for node in settings.node_names:
        what = f"node {node} is not ready"
        daemons.wait_for(settings, f"slurmd.{node}", what, 30, partial(_ready, node))
    say(f"nodes {', '.join(settings.node_names)} are ready")


def stop(settings: Settings) -> None:
    """End every job and daemon."""
    os.environ["SLURM_CONF"] = str(settings.slurm_conf)
    if all(daemons.pid_of(settings, name) is not None for name in names(settings)):
        for what in (["--state=PENDING"], ["--signal=KILL", "--full", "--state=RUNNING"], []):
            daemons.answers("scancel", "--quiet", *what, "--user=root")
        _wait_until_empty()
    remains.kill(settings)
    for name in reversed(names(settings)):
        daemons.stop(settings, name)
    remains.kill(settings)  # what a daemon had begun meanwhile


def node_lines(settings: Settings) -> str:
    """Name, state, CPUs, memory and devices of each node, a line each."""
    env = {**os.environ, "SLURM_CONF": str(settings.slurm_conf)}
    command = ["sinfo", "-h", "-N", "-p", "main", "-o", "%N %t %c CPUs %m MB %G"]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=20).stdout


def unlink_default(settings: Settings) -> None:
    """Take away the link to our slurm.conf, if it is ours."""
    if DEFAULT_CONF.is_symlink() and DEFAULT_CONF.readlink() == settings.slurm_conf:
        DEFAULT_CONF.unlink()


def _link_default(settings: Settings, say: Callable[[str], None]) -> None:
    DEFAULT_CONF.parent.mkdir(exist_ok=True)
    if DEFAULT_CONF.exists() and not DEFAULT_CONF.is_symlink():
        say(f"warning: {DEFAULT_CONF} is there and left alone; $SLURM_CONF has to be set")
        return
    DEFAULT_CONF.unlink(missing_ok=True)
    DEFAULT_CONF.symlink_to(settings.slurm_conf)


def _start_munged(settings: Settings, own_names: bool) -> None:
    """Start the service that proves to the daemons who is asking."""
    key, socket = settings.state / "munge" / "munge.key", settings.run / "munge.socket"
    secret(key, 512)
    command = ["munged", "--foreground", f"--socket={socket}", f"--key-file={key}"]
    command += [f"--pid-file={settings.run / 'munged.own.pid'}", "--num-threads=4"]
    command += [f"--log-file={settings.state / 'munge' / 'munged.log'}"]
    command += [f"--seed-file={settings.state / 'munge' / 'munge.seed'}", "--force"]
    daemons.start(settings, Daemon("munged", tuple(command)), own_names)
    daemons.wait_for(
        settings, "munged", "munged does not answer", 20,
        lambda: daemons.answers("munge", "-S", str(socket), "-n"),
    )  # fmt: skip


def _ready(node: str) -> bool:
    """Whether a node takes jobs; one that was lost is asked to come back."""
    asked = ["sinfo", "-h", "-N", "-p", "main", "-n", node, "-o", "%t"]
    state = subprocess.run(asked, capture_output=True, text=True, timeout=20).stdout.strip()
    if state.startswith(("down", "drain")):
        daemons.answers("scontrol", "update", f"nodename={node}", "state=resume")
    return state in ("idle", "mix", "alloc")


def _wait_until_empty() -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        queue = subprocess.run(["squeue", "-h"], capture_output=True, text=True)
        if queue.returncode == 0 and not queue.stdout.strip():
            return
        time.sleep(0.2)
