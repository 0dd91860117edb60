"""Putting the ledger right after a submitter was killed between intent and answer."""

from __future__ import annotations

from collections.abc import Callable

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.runs.notes import Notes, Submission, read_notes
from sparrow_lab.runs.process import this_process
from sparrow_lab.sweep.slurm import breaker, start
from sparrow_lab.sweep.slurm.programs import SlurmError, call
from sparrow_lab.sweep.slurm.squeue import Queue, cancel, job_name, user
from sparrow_lab.sweep.slurm.start import Death


def reconcile(sweep: SweepFolder, queue: Queue, say: Callable[[str], None]) -> None:
    """Say in the ledger what became of each submission whose answer is missing.

    One that is in the queue, that accounting knows, or whose elements have claimed an attempt
    was submitted; any other was not, and its points are planned again. One that was written off
    and is in the queue after all, because its request was slow, counts again. Then write down which
    jobs ended before their workers had begun, and cancel jobs
    that no point listens to any more: their points have a later submission.
    """
    ledger = Ledger(sweep.ledger_path)
    notes = read_notes(ledger.read())
    for submission in notes.submissions.values():
        late = submission.refused and bool(queue.of(submission.token))
        if not late and (submission.job is not None or submission.refused):
            continue
        job = _find(sweep, submission, queue)
        if job:
            ledger.append("submitted", token=submission.token, job=job)
            say(f"job {job} was submitted although its number had not been written down")
        else:
            ledger.append("refused", token=submission.token, reason="was never submitted")
    _write_deaths(sweep, notes, queue)
    _cancel_strays(notes, queue, say)


def _write_deaths(sweep: SweepFolder, notes: Notes, queue: Queue) -> None:
    """Give each job that ended before its worker had begun a failed attempt at its point, as a
    worker would have: it counts among the tries, and keeps what the job printed. The attempt says
    of which mark it is, so that a command that was killed before the mark was renamed is gone on
    with, and not done twice."""
    for key in start.keys(sweep):
        for token, index in start.deaths(sweep, key):
            if (token, index) in queue.elements:
                continue
            point_id = _at(sweep, notes, token, index)
            death = start.read_death(sweep, key, token, index)
            if point_id and death is not None:
                submission = notes.submissions[token]
                attempt = _attempt_of(sweep, point_id, submission, index, death)
                if attempt.read_failure() is None:
                    attempt.write_failure("error", death.reason, "StartFailed", death.text())
                breaker.note_failure(sweep, submission.stage, point_id, death.reason)
            start.written_down(sweep, key, token, index)


def _attempt_of(
    sweep: SweepFolder, point_id: str, submission: Submission, index: int, death: Death
) -> AttemptFolder:
    """The attempt that stands for a death: the one that an earlier command has claimed, or new."""
    stamp = {"token": submission.token, "mark": death.mark}
    for attempt in sweep.point(point_id).attempts():
        claim = attempt.read_claim() or {}
        if {name: claim.get(name) for name in stamp} == stamp:
            return attempt
    job = {"array": submission.job, "index": index}
    owner = {**this_process(), "pid": 0, "slurm": job, **stamp}
    return sweep.point(point_id).new_attempt(owner)


def _at(sweep: SweepFolder, notes: Notes, token: str, index: int) -> str:
    """The point that an element would have begun with; empty when that is another's by now."""
    elements = notes.submissions[token].elements if token in notes.submissions else []
    for point_id in elements[index] if index < len(elements) else ():
        if sweep.point(point_id).read_result() is None:
            return point_id if notes.of(point_id).chunk == token else ""
    return ""


def _find(sweep: SweepFolder, submission: Submission, queue: Queue) -> str:
    queued = queue.of(submission.token)
    if queued:
        return queued[0].array
    for ids in submission.elements:
        for point_id in ids:
            for attempt in reversed(sweep.point(point_id).attempts()):
                claim = attempt.read_claim() or {}
                if claim.get("token") == submission.token:
                    return str((claim.get("slurm") or {}).get("array", "?"))
    return _from_accounting(submission)


def _from_accounting(submission: Submission) -> str:
    """Ask sacct for the name; a cluster without accounting knows nothing more."""
    command = ["sacct", "-n", "-X", "-P", "-u", user(), f"--name={job_name(submission.token)}"]
    try:
        text = call([*command, "-S", "now-30days", "-o", "JobID"], limit_s=30)
    except SlurmError:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].partition("_")[0] if lines else ""


def _cancel_strays(notes: Notes, queue: Queue, say: Callable[[str], None]) -> None:
    strays = []
    for (token, index), queued in queue.elements.items():
        submission = notes.submissions.get(token)
        if submission is None or index >= len(submission.elements):
            continue
        ids = submission.elements[index]
        if all(notes.of(i).chunk not in (token, None) for i in ids) and queued.phase == "pending":
            strays.append(queued.job)
    if strays:
        say(f"cancelling {len(strays)} jobs whose points were submitted again later")
        try:
            cancel(strays)
        except SlurmError as error:
            say(f"warning: {error}; they leave by themselves")
