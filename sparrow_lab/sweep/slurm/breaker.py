"""What the jobs of a stage tell each other, so that one bug does not burn a whole queue.

One small file a failed point, and one for the first success. A job that is about to begin
looks here; nothing else has to be alive for it. One success opens a stage for good.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

from sparrow_lab.runs.atomic import create_json, read_json, write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.guards import SAME_FAILURES, signature

_SUCCESS = "success"


def note_success(sweep: SweepFolder, stage: str, point_id: str) -> None:
    """A point of the stage is done."""
    create_json(sweep.breaker(stage) / _SUCCESS, {"point": point_id})


def note_failure(sweep: SweepFolder, stage: str, point_id: str, message: str) -> None:
    """A point of the stage has failed for good."""
    write_json(sweep.breaker(stage) / f"{point_id}.json", {"message": message})


def succeeded(sweep: SweepFolder, stage: str) -> bool:
    """Whether any point of the stage was ever done by a job."""
    return (sweep.breaker(stage) / _SUCCESS).exists()


def holds(sweep: SweepFolder, stage: str, limit: int = SAME_FAILURES) -> str:
    """Why the stage is held; empty when it is not."""
    folder = sweep.breaker(stage)
    if succeeded(sweep, stage):
        return ""
    alike: dict[str, int] = defaultdict(int)
    for path in sorted(folder.glob("*.json")):
        failure = read_json(path)
        if isinstance(failure, dict):
            what = signature(str(failure.get("message")))
            alike[what] += 1
            if alike[what] >= limit:
                return f"{limit} points of this stage failed alike: {what}"
    return ""


def forgive(sweep: SweepFolder) -> None:
    """Forget the failures so far: the user runs the sweep again, or retries points."""
    for path in sweep.breaker("*").parent.glob("*/*.json"):
        with contextlib.suppress(OSError):
            path.unlink()
