"""What accounting adds to a lost point: out of memory, time limit, cancelled by whom.

Only words: with or without accounting every state is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparrow_lab.runs.notes import Notes
from sparrow_lab.sweep.slurm.programs import SlurmError, call
from sparrow_lab.sweep.states import PointState

MOST_ASKED = 200
"""Accounting is not asked for more jobs than this: a screen shows no more."""
SILENT = frozenset({"COMPLETED", "RUNNING", "PENDING", "REQUEUED", ""})


def with_detail(states: Mapping[str, PointState], notes: Notes) -> dict[str, PointState]:
    """The states with Slurm's own word for how the job of a lost point ended, if it has one."""
    jobs: dict[str, str] = {}
    for point_id, state in states.items():
        submission = notes.submission_of(point_id)
        if state.state == "lost" and submission is not None and submission.job:
            jobs[point_id] = f"{submission.job}_{notes.of(point_id).index}"
    words = _ask(list(dict.fromkeys(jobs.values()))[:MOST_ASKED]) if jobs else {}
    out = dict(states)
    for point_id, job in jobs.items():
        word = words.get(job, "")
        if word.split(" ")[0] not in SILENT:
            state = states[point_id]
            out[point_id] = replace(state, reason=f"{state.reason} (Slurm: {word})")
    return out


def _ask(jobs: list[str]) -> dict[str, str]:
    command = ["sacct", "-n", "-X", "-P", "-j", ",".join(jobs), "-o", "JobID,State"]
    try:
        text = call(command, limit_s=10)
    except SlurmError:
        return {}
    parts = (line.strip().partition("|") for line in text.splitlines())
    return {job: state for job, _, state in parts}
