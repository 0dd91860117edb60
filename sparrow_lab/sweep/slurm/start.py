"""Jobs that end before their worker has begun: told by a mark that a plain shell leaves.

A line of `setup:` that exits, or a Python that a node does not have, ends a job before anything
of ours runs. So the batch script begins with a few lines of shell. They leave a mark, which the
worker takes away as its first act; where the job ends with the mark still there, its exit code
goes into it. A job that begins while others have left such marks, and no worker has begun with
the same set-up, leaves at once and takes the rest of its array out of the queue.

    starts/<key>/<token>.<index>    started, and not begun; with an exit code: ended like that
    starts/<key>/<token>-<index>    the same, and by now the failed attempt of a point
    starts/<key>/begun              a worker has begun, so the set-up works
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sparrow_lab.runs.atomic import create_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.guards import SAME_FAILURES

if TYPE_CHECKING:
    from sparrow_lab.config.site import SiteConfig
    from sparrow_lab.sweep.slurm.chunk import Chunk

BEGUN = "begun"
OPEN, WRITTEN = ".", "-"
"""Between token and index of a mark: as a job leaves it, and once a command has written it down."""
MOST_KEPT = 1 << 16
"""Characters of a log that are kept with a failure."""


@dataclass(frozen=True)
class Death:
    """How a job ended before its worker had begun; `log` is all that it printed, `mark` the time
    of the mark that it left, which tells its starts apart."""

    code: int
    log: Path
    mark: int

    def text(self) -> str:
        """The end of what it printed."""
        try:
            return self.log.read_text(errors="replace")[-MOST_KEPT:]
        except OSError:
            return ""

    @property
    def reason(self) -> str:
        """One line: the exit code, and the last words."""
        said = last_words(self.log) or "it printed nothing"
        return f"its job ended before its worker had begun (exit code {self.code}): {said}"


def start_key(site: SiteConfig, code: Path) -> str:
    """A name for what decides whether a worker can begin: Python, code, set-up, kind of node."""
    parts = [sys.executable, code.name, site.setup, site.partition, site.constraint]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


# ------------------------------------------------------------------- the shell's side


def first_lines(chunk: Chunk) -> list[str]:
    """Shell before the lines of `setup:`; none for a job without a key.

    A signal is no fault of the set-up: the mark of a job that was cancelled or preempted while
    it started stays empty.
    """
    if not chunk.start:
        return []
    folder = shlex.quote(str(_folder(SweepFolder(Path(chunk.sweep)), chunk.start)))
    limit = 1 if chunk.waits else SAME_FAILURES
    return [
        f"sparrow_starts={folder}",
        f'sparrow_mark="$sparrow_starts/{chunk.token}.$SLURM_ARRAY_TASK_ID"',
        'sparrow_ended() { if [ -e "$sparrow_mark" ] && { [ "$1" -le 128 ] || [ "$1" -gt 192 ]; }; '
        'then echo "$1" > "$sparrow_mark"; fi; }',
        "sparrow_killed() { trap - EXIT TERM; kill -TERM $$; }",
        f'if [ ! -e "$sparrow_starts/{BEGUN}" ] && '
        f'[ "$(find "$sparrow_starts" -name \'[!.]*.*\' -size +0 | wc -l)" -ge {limit} ]; then',
        '  scancel --state=PENDING "$SLURM_ARRAY_JOB_ID"',
        '  echo "held: other jobs of this sweep ended before their workers had begun"',
        "  exit 0",
        "fi",
        ': > "$sparrow_mark"',
        "trap 'sparrow_ended $?' EXIT",
        "trap sparrow_killed TERM",
    ]


def lines_before_worker(chunk: Chunk) -> list[str]:
    """Shell after the lines of `setup:`: a signal is again what it is for any job.

    A trap that a line of `setup:` has set for itself stays.
    """
    if not chunk.start:
        return []
    ours = 'case "$(trap -p {0})" in *sparrow_*) trap - {0};; esac'
    return [ours.format("EXIT"), ours.format("TERM"), "set +e"]


def last_lines(chunk: Chunk) -> list[str]:
    """Shell after the worker: one that could not begin is noted too."""
    if not chunk.start:
        return []
    return ["sparrow_code=$?", 'sparrow_ended "$sparrow_code"', 'exit "$sparrow_code"']


# ------------------------------------------------------------------- the worker's side


def prepare(chunk: Chunk) -> None:
    """Make the folder of the marks, before anything is submitted."""
    if chunk.start:
        folder = _folder(SweepFolder(Path(chunk.sweep)), chunk.start)
        folder.mkdir(parents=True, exist_ok=True)


def begun(chunk: Chunk, index: int) -> None:
    """The worker of an element is there: take its mark away, and say that the set-up works."""
    if not chunk.start:
        return
    folder = _folder(SweepFolder(Path(chunk.sweep)), chunk.start)
    _mark(folder, chunk.token, index).unlink(missing_ok=True)
    if not (folder / BEGUN).exists():
        create_json(folder / BEGUN, {"token": chunk.token, "index": index})


# ------------------------------------------------------------------- reading


def read_death(sweep: SweepFolder, key: str, token: str, index: int) -> Death | None:
    """How the last start of an element ended if that was before its worker had begun, with an
    exit code, and is written down nowhere else. Says nothing while the element is in the queue:
    it may be just starting."""
    return _read(sweep, _mark(_folder(sweep, key), token, index), token, index) if key else None


def why_held(sweep: SweepFolder, key: str) -> str:
    """What holds jobs that were to begin with the same set-up; empty when nothing does."""
    if not key or (_folder(sweep, key) / BEGUN).exists():
        return ""
    for separator in (OPEN, WRITTEN):
        for token, index in deaths(sweep, key, separator):
            path = _mark(_folder(sweep, key), token, index, separator)
            death = _read(sweep, path, token, index)
            if death is not None:
                return f"jobs of this set-up end before their workers begin; {death.reason}"
    return ""


def deaths(sweep: SweepFolder, key: str, separator: str = OPEN) -> list[tuple[str, int]]:
    """Token and index of each element whose mark bears an exit code, oldest first."""
    found = []
    try:
        for path in _folder(sweep, key).iterdir():
            token, _, index = path.name.partition(separator)
            if index.isdecimal() and (seen := path.stat()).st_size:
                found.append((seen.st_mtime, token, int(index)))
    except OSError:
        return []
    return [(token, index) for _, token, index in sorted(found)]


def keys(sweep: SweepFolder) -> Sequence[str]:
    """The set-ups with which anything of a sweep was ever submitted."""
    try:
        return sorted(path.name for path in sweep.starts.iterdir())
    except OSError:
        return ()


def written_down(sweep: SweepFolder, key: str, token: str, index: int) -> None:
    """The death is on record as an attempt of its point: it holds no job of a later command."""
    folder = _folder(sweep, key)
    _mark(folder, token, index).rename(_mark(folder, token, index, WRITTEN))


def last_words(log: Path) -> str:
    """The last line that a job printed outside of any attempt, Slurm's own only if there is no
    other; empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in reversed(lines) if line.strip()]
    own = [line for line in said if not line.startswith(("srun:", "slurmstepd"))]
    return next(iter([*own, *said]), "")


def _folder(sweep: SweepFolder, key: str) -> Path:
    return sweep.starts / key


def _mark(folder: Path, token: str, index: int, separator: str = OPEN) -> Path:
    return folder / f"{token}{separator}{index}"


def _read(sweep: SweepFolder, mark: Path, token: str, index: int) -> Death | None:
    try:
        text, left = mark.read_text().strip(), mark.stat().st_mtime_ns
    except OSError:
        return None
    log = sweep.submission(token) / f"{index}.log"
    return Death(int(text), log, left) if text.isdecimal() else None
