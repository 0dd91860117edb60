"""A chunk: one array as it was submitted, in `submitted/<token>/chunk.json`.

Written before sbatch is called, and all that an element of the array needs to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.runs.layout import SweepFolder

SCHEMA = 1
SCRIPT = "job.sh"
"""The batch script, beside the chunk: `sbatch` takes it again."""


@dataclass(frozen=True)
class Chunk:
    """One array: `elements[i]` are the ids of the points of index i, each after its needs."""

    token: str
    stage: str
    sweep: str
    """The sweep's folder, absolute."""
    code: str
    """Where the submitted code lies, absolute."""
    elements: tuple[tuple[str, ...], ...]
    canary: str | None = None
    """The point of this stage that has to succeed before any of these begins."""
    start: str = ""
    """Under which name its jobs leave marks until their workers begin; empty: they do not."""
    waits: bool = False
    """Whether other jobs have to end before: then one that could not begin holds these."""
    retries: int = 1
    grace: int = 60
    kill_wait: int = 30
    on_preempt: str = "requeue"
    requeues: int = 3
    limit_s: float = 0.0
    """Seconds from a job's start to the signal before its time limit."""
    cache: str | None = None
    stages: Mapping[str, str] | None = None
    """Stage functions, for tests; None takes the real ones."""
    site: Mapping[str, Any] = field(default_factory=dict)
    """The site as it was, for people."""

    @property
    def folder(self) -> Path:
        return SweepFolder(Path(self.sweep)).submission(self.token)

    def write(self) -> None:
        """Put it where the elements look for it."""
        write_json(self.folder / "chunk.json", {"schema": SCHEMA, **asdict(self)})


def read_chunk(folder: Path) -> Chunk:
    """The chunk of a submission. Raises UserError when it is missing or of a later version."""
    data = read_json(folder / "chunk.json")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise UserError("no readable chunk.json of this version", str(folder))
    known = {k: v for k, v in data.items() if k in Chunk.__dataclass_fields__}
    known["elements"] = tuple(tuple(ids) for ids in data["elements"])
    return Chunk(**known)


def continue_command(chunk: Chunk, index: int, after: str) -> list[str]:
    """The command that submits one element again, to begin when job `after` has ended.

    What stands here goes before what the script says.
    """
    return [
        "sbatch",
        "--parsable",
        f"--array={index}-{index}",
        f"--dependency=afterany:{after}",
        str(chunk.folder / SCRIPT),
    ]
