"""What the cluster looks like, where its files lie, and its configuration files."""

from __future__ import annotations

import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template

TEMPLATES = Path(__file__).parent / "etc"
LONGEST_STATE = 70
"""A Unix socket's path may have 107 characters."""


@dataclass(frozen=True)
class Settings:
    """Size and place of a cluster; `state` is its folder."""

    state: Path
    nodes: int = 2
    gpus: int = 2
    cpus: int = 8
    memory_mb: int = 16384
    port: int = 17000
    max_array: int = 1001

    @property
    def run(self) -> Path:
        """Sockets and pid files."""
        return self.state / "run"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def etc(self) -> Path:
        return self.state / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def sql_port(self) -> int:
        return self.port + 2

    @property
    def node_names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.nodes + 1)]

    def save(self) -> None:
        """Keep the settings beside the cluster, for `stop`, `status` and the next `start`."""
        data = {k: v for k, v in asdict(self).items() if k != "state"}
        (self.state / "settings.json").write_text(json.dumps(data))

    @classmethod
    def load(cls, state: Path) -> Settings:
        """The settings that a cluster was started with; the default ones when it never was."""
        try:
            return cls(state, **json.loads((state / "settings.json").read_text()))
        except FileNotFoundError:
            return cls(state)


def make_folders(settings: Settings) -> None:
    """Make the folders, the pretend devices and the hosts file of the nodes."""
    if len(str(settings.state)) > LONGEST_STATE:
        raise RuntimeError(f"{settings.state} is too long for a socket's path")
    for folder in ("run", "log", "etc", "dev", "ctld", "tmp", "munge", "nocgroup"):
        (settings.state / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
    (settings.state / "munge").chmod(0o711)
    for i in range(settings.gpus):
        device = settings.state / "dev" / f"nvidia{i}"
        if not device.is_symlink():
            device.symlink_to("/dev/null")
    names = " ".join(["localhost", "head", *settings.node_names])
    (settings.etc / "hosts").write_text(f"127.0.0.1 {names}\n")


def secret(path: Path, size: int) -> str:
    """A random text of `size` bytes in hex, made once and kept in a file that only we may read."""
    if not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as out:
            out.write(secrets.token_hex(size))
    return path.read_text()


def write_configs(settings: Settings, own_names: bool) -> bool:
    """Write every configuration file; True when one of them was there and has changed.

    `own_names`: the daemons have host names of their own, so that they can be told to
    listen on what these resolve to, which is loopback.
    """
    first_job_id = settings.state / "first_job_id"
    if not first_job_id.exists():
        first_job_id.write_text(str(int(time.time()) % 60_000_000 + 1))
    only_loopback = "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    nodes = [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={settings.port + 3 + i}"
        f" CPUs={settings.cpus} RealMemory={settings.memory_mb} Gres=gpu:{settings.gpus}"
        for i, name in enumerate(settings.node_names)
    ]
    values = {
        "state": settings.state,
        "ctld_port": settings.port,
        "dbd_port": settings.port + 1,
        "sql_port": settings.sql_port,
        "sql_password": secret(settings.state / "sql.pass", 24),
        "first_job_id": first_job_id.read_text().strip(),
        "max_array": settings.max_array,
        "bind": only_loopback if own_names else "# listens on every interface",
        "nodes": "\n".join(nodes),
        "node_names": ",".join(settings.node_names),
        "last_gpu": settings.gpus - 1,
    }
    changed = [_put(settings.etc / path.name, path, values) for path in TEMPLATES.iterdir()]
    (settings.state / "env.sh").write_text(f"export SLURM_CONF={settings.slurm_conf}\n")
    return any(changed)


def _put(target: Path, template: Path, values: dict[str, object]) -> bool:
    text = Template(template.read_text()).substitute(values)
    before = target.read_text() if target.exists() else None
    if text != before:
        target.write_text(text)
        # slurmdbd refuses a file with its password that others may read
        target.chmod(0o600 if target.name == "slurmdbd.conf" else 0o644)
    return before is not None and text != before
