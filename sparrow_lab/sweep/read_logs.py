"""Finding a point's log and printing it, with the cause of a failure at its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TextIO

from sparrow_lab.config.schema import STAGES
from sparrow_lab.errors import UserError, nearest
from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.layout import PointFolder, SweepFolder, find_sweep, runs_root
from sparrow_lab.sweep.select import find_points
from sparrow_lab.sweep.states import PointState, State, is_running, read_states

POLL_S = 0.3

INTEREST: tuple[State, ...] = (
    "failed", "lost", "running", "interrupted", "done", "pending", "submitted", "cancelled",
    "held", "planned",
)  # fmt: skip
"""Of several stages with one label, the one in the first of these states is meant."""

STAGE_INTEREST = ("train", "evaluate", "schedule", "calibrate")


def find_log(
    text: str,
    sweep: str | None = None,
    stage: str | None = None,
    number: int | None = None,
    root: Path | None = None,
) -> tuple[PointFolder, AttemptFolder | Path]:
    """The point that `text` means, an id's beginning or a label, and one of its attempts; for a
    job on a cluster that ended before its worker had begun, the file of what that printed.

    A label that several stages of a point share means the one of most interest: failed,
    else running, else train. Raises UserError when nothing or more than one configuration
    fits, and when there is no such attempt yet.
    """
    if stage is not None and stage not in STAGES:
        hint = nearest(stage, STAGES)
        raise UserError(f"found '{stage}'{hint}; allowed: {', '.join(STAGES)}", "--stage")
    sweeps = [find_sweep(sweep, root)] if sweep else _all_sweeps(runs_root(root))
    found: list[tuple[SweepFolder, PointState]] = []
    for folder in sweeps:
        plan = folder.read_plan()
        points = find_points(plan.points, text)
        if points:
            states = read_states(folder, plan)
            found += [(folder, states[p.id]) for p in points if stage in (None, p.stage)]
    if not found:
        labels = {p.short() for folder in sweeps for p in folder.read_plan().points}
        known = nearest(text, labels) or (f"; such as {min(labels)}" if labels else "")
        raise UserError(f"no point '{text}' in {_places(sweeps, root)}{known}", "POINT")
    folder, state = _choose(found, text)
    if state.log is not None and number is None:
        return folder.point(state.point.id), state.log
    attempts = folder.point(state.point.id).followed().attempts()
    chosen = [a for a in attempts if number in (None, a.number)]
    if not chosen:
        have = f"it has {len(attempts)} attempts" if attempts else f"it is {state.state}"
        reason = f" ({state.reason})" if state.reason else ""
        what = f"{state.point.stage} {state.point.short()}"
        raise UserError(f"{what} has no such log yet; {have}{reason}", "POINT")
    return folder.point(state.point.id).followed(), chosen[-1]


def print_log(
    point: PointFolder, attempt: AttemptFolder | Path, out: TextIO, follow: bool = False
) -> int:
    """Print the log, then the cause unless the log ends with it. Returns 0.

    With `follow` print what is added until the attempt ends. A log without an attempt is that
    of a job which has ended: its name comes last.
    """
    if isinstance(attempt, Path):
        printed, _ = _copy(attempt, 0, out)
        out.write("" if printed.endswith("\n") or not printed else "\n")
        out.write(f"the job ended before its worker had begun; all that it printed: {attempt}\n")
        out.flush()
        return 0
    printed, offset = _copy(attempt.log_path, 0, out)
    while follow and _goes_on(point, attempt):
        time.sleep(POLL_S)
        more, offset = _copy(attempt.log_path, offset, out)
        printed = (printed + more)[-(1 << 16) :]
    if follow:
        printed += _copy(attempt.log_path, offset, out)[0]
    failure = attempt.read_failure()
    if failure is not None:
        cause = str(failure.get("traceback") or "").strip()
        last = f"{failure.get('kind')}: {failure.get('message')}"
        if cause and cause.splitlines()[-1] not in printed:
            out.write(cause + "\n")
        elif not cause and str(failure.get("message")) not in printed:
            out.write(last + "\n")
        out.flush()
    return 0


def _goes_on(point: PointFolder, attempt: AttemptFolder) -> bool:
    """Whether the attempt may still print."""
    if attempt.read_failure() is not None or point.read_result() is not None:
        return False
    return attempt.still_owner() and is_running(attempt)


def _copy(path: Path, offset: int, out: TextIO) -> tuple[str, int]:
    """Print what the file has beyond `offset`; return it and the new offset."""
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            data = stream.read()
    except FileNotFoundError:
        return "", offset
    text = data.decode("utf-8", errors="replace")
    out.write(text)
    out.flush()
    return text, offset + len(data)


def _choose(
    found: list[tuple[SweepFolder, PointState]], text: str
) -> tuple[SweepFolder, PointState]:
    """One of several; they must be stages of one configuration in one sweep."""
    labels = {tuple(sorted(state.point.label.items(), key=str)) for _, state in found}
    names = sorted({folder.name for folder, _ in found})
    if len(names) > 1:
        raise UserError(f"'{text}' is in {', '.join(names)}; say which with --sweep", "POINT")
    if len(labels) > 1:
        stages = {state.point.stage for _, state in found}
        main = next((stage for stage in STAGE_INTEREST if stage in stages), None)
        found = [item for item in found if main in (None, item[1].point.stage)]
        if len(found) > 1:
            shown = "; ".join(f"{s.point.id[:8]} {s.point.short()}" for _, s in found[:8])
            raise UserError(f"'{text}' means {len(found)} points: {shown}", "POINT")

    def interest(item: tuple[SweepFolder, PointState]) -> tuple[int, int]:
        state = item[1]
        stage = state.point.stage
        rank = STAGE_INTEREST.index(stage) if stage in STAGE_INTEREST else len(STAGE_INTEREST)
        return INTEREST.index(state.state), rank

    return min(found, key=interest)


def _all_sweeps(root: Path) -> list[SweepFolder]:
    try:
        return [SweepFolder(p) for p in sorted(root.iterdir()) if (p / "plan.json").is_file()]
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", str(root)) from error


def _places(sweeps: list[SweepFolder], root: Path | None) -> str:
    names = ", ".join(folder.name for folder in sweeps[:8])
    return names or f"{runs_root(root)} (no sweep there)"
