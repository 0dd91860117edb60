"""A site file: how a cluster wants its jobs. Every key, with its meaning and default.

Nothing here can change a result, so nothing of it enters a point's id: the same points run
on a laptop, on one cluster and on another.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError

from sparrow_lab.config import describe
from sparrow_lab.config.messages import from_validation
from sparrow_lab.config.schema import Source
from sparrow_lab.config.strict import Strict
from sparrow_lab.config.yaml_source import parse_file
from sparrow_lab.errors import UserError

_CLOCK = re.compile(r"(?:([0-9]+)-)?([0-9]{1,3}):([0-9]{2}):([0-9]{2})")
_MEMORY = re.compile(r"[1-9][0-9]*[KMGT]?")


def _minutes(value: Any) -> Any:
    """`12:30:00` and `2-00:00:00` as minutes, rounded up; other things as they are."""
    if not isinstance(value, str):
        return value
    match = _CLOCK.fullmatch(value.strip())
    if match is None:
        raise ValueError(
            f"found the text '{value}'; allowed: whole minutes, or hours:minutes:seconds as in "
            "12:30:00, with days as in 2-00:00:00"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


def _memory(value: Any) -> Any:
    if value is None or (isinstance(value, str) and _MEMORY.fullmatch(value)):
        return value
    raise ValueError(
        f"found {describe.found(value)}; allowed: a whole number with its unit, such as 32G or 512M"
    )


Minutes = Annotated[int, BeforeValidator(_minutes), Field(ge=1)]
Memory = Annotated[str | None, BeforeValidator(_memory)]


class SiteConfig(Strict):
    """One cluster, or one way of using it."""

    partition: str | None = None
    """Where jobs go; several may be given with commas. null takes the cluster's default."""
    controller_partition: str | None = None
    """Where the controller of an adaptive sweep runs, which needs one CPU, no GPU, and to be
    allowed to call sbatch; null takes `partition`."""
    account: str | None = None
    qos: str | None = None
    gpus: int = Field(0, ge=0)
    """GPUs of one training run. All else follows from it unless it is stated."""
    cpus: int | None = Field(None, ge=1)
    """CPUs of a job; null takes the points' threads, and four for each GPU if that is more."""
    mem: Memory = None
    """Memory of a job, such as 32G; null leaves it to the cluster's default."""
    time: Minutes = 720
    """Limit of one job: minutes, or 12:30:00, or 2-00:00:00. A run that needs longer saves
    and goes on in a job of its own name: this is no limit of a run."""
    setup: list[str] = Field(default_factory=list)
    """Shell lines before the worker, such as `module load cuda`. They are stored with the
    runs: put no secret here."""
    array_cap: int | None = Field(None, ge=1)
    """Most elements of one array; null asks the cluster (its MaxArraySize)."""
    throttle: int | None = Field(None, ge=1)
    """Most jobs of a sweep that run at once; null sets no limit."""
    grace: int = Field(60, ge=5, le=3600)
    """Seconds that a job has to save and leave, between the signal and its end: before the
    time limit, and when it is preempted (the partition's GraceTime, if that is shorter)."""
    on_preempt: Literal["requeue", "resubmit"] = "requeue"
    """How an interrupted job goes on: `requeue` asks Slurm to start it again; `resubmit` is for
    clusters that cancel what they preempt, and submits the rest as a new job, which the
    throttle of its array does not hold."""
    requeues: int = Field(3, ge=0)
    """So many jobs in a row that reached their time limit while the point got no further end
    it as failed; 0 never does. Preemptions do not count."""
    cache: str | None = "/tmp"
    """Folder on the node's own disk for compiled kernels; variables such as $TMPDIR are those
    of the node. Never a network file system; null leaves the libraries' defaults."""
    constraint: str | None = None
    exclude: str | None = None
    """Nodes not to be used, as Slurm writes them: node[3-5],node9."""
    reservation: str | None = None
    extra: dict[str, str | int | bool] = Field(default_factory=dict)
    """Further options of sbatch, without the dashes: `mail-type: END`; true for a bare flag."""
    max_gpu_hours: float | None = Field(None, gt=0)
    """A sweep whose estimate, with what it has used, is above this is not submitted. The
    sweep file's own `launch.max_gpu_hours` may set less."""

    _source: Source = PrivateAttr(default_factory=Source)
    _file: str = PrivateAttr(default="")

    @property
    def file(self) -> str:
        """The file that this was read from; empty for a site made otherwise."""
        return self._file

    def where(self, key: str) -> str:
        """`file:line:column` of a key's value, or the file where the key is not written."""
        root = self._source.root
        node = root.child(key) if root is not None else None
        return node.where if node is not None else self._file


RESERVED = frozenset(
    [
        "partition",
        "account",
        "qos",
        "gpus",
        "gres",
        "gpus-per-node",
        "gpus-per-task",
        "cpus-per-task",
        "mem",
        "time",
        "array",
        "signal",
        "dependency",
        "job-name",
        "output",
        "error",
        "open-mode",
        "requeue",
        "no-requeue",
        "constraint",
        "exclude",
        "reservation",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "wrap",
        "parsable",
        "wait",
        "chdir",
    ]
)
"""Options of sbatch that `extra` may not set: a key of the site, or the tool, sets them."""


def load_site(path: Path | str) -> SiteConfig:
    """Read a site file. Raises UserError, with file, line and column, for all that is wrong."""
    root = parse_file(Path(path), "site file")
    if not isinstance(root.value, dict):
        keys = ", ".join(SiteConfig.model_fields)
        raise UserError(
            f"found {describe.found(root.plain())}; allowed: a mapping with {keys}", root.where
        )
    try:
        site = SiteConfig.model_validate(root.plain())
    except ValidationError as error:
        raise from_validation(error, root, SiteConfig) from None
    site._source.root = root
    site._file = str(path)
    if site.grace > 30 * site.time:
        raise UserError(
            f"grace: {site.grace} s is more than half of the time, {site.time} min: jobs would be "
            "asked to leave when they have hardly begun",
            site.where("grace" if root.child("grace") is not None else "time"),
        )
    for key in site.extra:
        if key.lstrip("-") in RESERVED or key.startswith("-"):
            node = root.value["extra"].value[key]
            said = (
                "without dashes" if key.startswith("-") else "a key of its own or set by the tool"
            )
            raise UserError(f"extra: '{key}' is to be {said}", node.key_where or node.where)
    return site


def derived_cpus(site: SiteConfig, threads: int) -> int:
    """CPUs of a job whose points use so many threads."""
    return site.cpus or max(threads, 4 * site.gpus, 1)
