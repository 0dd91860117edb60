"""How a job ended, point by point; what its worker could not record is recorded here."""

from __future__ import annotations

import pickle
from typing import Literal

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.process import this_process
from sparrow_lab.sweep.jobs import Job

Outcome = Literal["ended", "quiet", "not begun"]
"""ended: a result or a failure record is there. quiet: the worker left before this point,
its next one. not begun: the job never came near this point."""


def settle(job: Job, timeout_min: float) -> dict[str, Outcome]:
    """The outcome of each point of a job whose processes are gone.

    An attempt without a result or a record gets one: `timeout` or `interrupted` when the
    launcher ended it, else `lost`. So does a worker that died before it claimed anything:
    `error` when it could not be started (a broken installation), `lost` when it was killed.
    """
    outcomes: dict[str, Outcome] = {}
    for point_id in job.points:
        folder = job.sweep.point(point_id)
        if folder.read_result() is not None:
            outcomes[point_id] = "ended"
            continue
        attempt = job.attempt_at(point_id)
        if attempt is not None:
            _record_end(job, attempt, point_id, timeout_min)
            outcomes[point_id] = "ended"
        elif job.stop_reason or job.attempts() or _returned(job) == "success":
            outcomes[point_id] = "quiet"
        else:
            _record_start(job, point_id)
            outcomes[point_id] = "ended"
        break  # later points need this one
    return {point_id: outcomes.get(point_id, "not begun") for point_id in job.points}


def _record_start(job: Job, point_id: str) -> None:
    """Claim an attempt for a worker that never came to claim one, and write why."""
    attempt = job.sweep.point(point_id).new_attempt(
        {**this_process(), "pid": 0, "token": job.token}
    )
    if _returned(job) == "error":
        message = job.last_words()
        attempt.write_failure("error", message, "StartFailed", job.full_log())
    else:
        message = job.last_words() or "the worker was killed before it had begun"
        attempt.write_failure("lost", message, "", job.full_log())
    _tell(job, attempt, point_id, "failed", message)


def _record_end(job: Job, attempt: AttemptFolder, point_id: str, timeout_min: float) -> None:
    """Write why the attempt ended, unless its worker did."""
    failure = attempt.read_failure()
    if job.stop_reason == "timeout" and (failure or {}).get("kind") in (None, "interrupted"):
        message = f"ran longer than timeout_min = {timeout_min:g}"
        attempt.write_failure("timeout", message)
        _tell(job, attempt, point_id, "failed", message)
    elif failure is None and job.stop_reason:
        begun = attempt.read_progress() is not None
        message = (
            "did not save and leave within the grace time, and was ended"
            if begun
            else "was still starting, and was ended after the grace time: nothing to save yet"
        )
        attempt.write_failure("interrupted", message)
        _tell(job, attempt, point_id, "interrupted", message)
    elif failure is None:
        message = "the worker was killed from outside (out of memory?)"
        attempt.write_failure("lost", message)
        _tell(job, attempt, point_id, "failed", message)


def _tell(job: Job, attempt: AttemptFolder, point_id: str, event: str, message: str) -> None:
    ledger = Ledger(job.sweep.ledger_path)
    ledger.append(event, point=point_id, attempt=attempt.number, message=message)


def _returned(job: Job) -> str:
    """What submitit saw of the worker's function: `success`, `error`, or nothing (killed)."""
    for path in (job.sweep.jobs / job.token).glob("*_result.pkl") if job.token else ():
        try:
            outcome, _ = pickle.loads(path.read_bytes())
        except (OSError, ValueError, EOFError, TypeError, pickle.UnpicklingError):
            continue
        return str(outcome)
    return ""
