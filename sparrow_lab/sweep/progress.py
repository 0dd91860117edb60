"""How far running points are and when they will be done, from the files that they write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparrow_lab.runs.attempt import AttemptFolder
from sparrow_lab.runs.events import read_last
from sparrow_lab.sweep.states import PointState


@dataclass(frozen=True)
class Progress:
    """A running attempt: steps, elapsed and remaining seconds, and its last measurements.

    `left`, `p05` and `evaluation` are None until something is known.
    """

    done: int = 0
    total: int = 0
    note: str = ""
    elapsed: float = 0.0
    left: float | None = None
    p05: float | None = None
    evaluation: float | None = None

    @property
    def share(self) -> float:
        """0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0


def progress_of(attempt: AttemptFolder | None) -> Progress:
    """Read an attempt's progress; an empty one when nothing was written yet."""
    claim = attempt.read_claim() if attempt else None
    if attempt is None or claim is None:
        return Progress()
    state = attempt.read_progress() or {}
    done, total = int(state.get("done", 0)), int(state.get("total", 0))
    last = read_last(attempt)
    begun = float(claim.get("time") or time.time())
    return Progress(
        done=done,
        total=total,
        note=str(state.get("note", "")),
        elapsed=max(0.0, time.time() - begun),
        left=_left(attempt, done, total, begun, float(state.get("time") or 0)),
        p05=last.get("acceptance/p05"),
        evaluation=last.get("evaluate/reward"),
    )


def _left(attempt: AttemptFolder, done: int, total: int, begun: float, seen: float) -> float | None:
    """Seconds left at the pace since the attempt's first event (it may have been resumed)."""
    first_step, first_time = _first_event(attempt) or (0, begun)
    if done <= first_step or total <= done or seen <= first_time:
        return 0.0 if total and done >= total else None
    pace = (seen - first_time) / (done - first_step)
    return max(0.0, pace * (total - done) - max(0.0, time.time() - seen))


def _first_event(attempt: AttemptFolder) -> tuple[int, float] | None:
    try:
        with attempt.events_path.open("rb") as stream:
            line = json.loads(stream.readline(1 << 16))
        return int(line["step"]), float(line["time"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def time_left(
    states: Iterable[PointState], running: Mapping[str, Progress], workers: int
) -> float | None:
    """Seconds until all are done, from the mean duration of each stage so far.

    None while a stage that is still to come has neither a finished nor a running point
    to judge by.
    """
    states = list(states)
    total = 0.0
    durations: dict[str, list[float]] = {}
    for state in states:
        seconds = float(state.result.get("seconds") or 0) if state.result else 0.0
        if seconds > 0:
            durations.setdefault(state.point.stage, []).append(seconds)
        elif state.state == "running":
            progress = running.get(state.point.id, Progress())
            if progress.left is not None:
                whole = progress.elapsed + progress.left
                durations.setdefault(state.point.stage, []).append(whole)
    for state in states:
        if state.state not in ("planned", "interrupted", "running"):
            continue
        known = durations.get(state.point.stage)
        if known is None:
            return None
        mean = sum(known) / len(known)
        progress = running.get(state.point.id, Progress())
        total += mean if progress.left is None else progress.left
    return total / max(1, workers)


def spell_time(seconds: float | None) -> str:
    """`45 s`, `3 min`, `2 h 10 min`, `3 d 4 h`; an empty text for None."""
    if seconds is None:
        return ""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    days, hours = divmod(round(minutes / 60), 24)
    return f"{days} d {hours} h" if hours else f"{days} d"
