"""What is said when a run of a sweep has ended, and the exit code that goes with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sparrow_lab.sweep.states import ON_CLUSTER, STATES, PointState

MOST_NAMED = 40


def exit_code(states: Mapping[str, PointState], stopped: int = 0) -> int:
    """0 when nothing is left to do, `stopped` when a stop left something, 1 for failures.

    Points that were cancelled by hand, and what needs them, are no failure.
    """
    left = [s for s in states.values() if s.state not in ("done", "cancelled")]
    waiting = ("planned", "interrupted", *ON_CLUSTER)
    if stopped and any(s.state in waiting for s in left):
        return stopped
    cancelled = {i for i, s in states.items() if s.state == "cancelled"}
    for state in states.values():  # needs come first
        if state.state == "held" and cancelled.intersection(state.point.needs.values()):
            cancelled.add(state.point.id)
    return 1 if any(s.point.id not in cancelled for s in left) else 0


def closing_lines(name: str, states: Mapping[str, PointState], stopped: int = 0) -> list[str]:
    """The end of a run, in words: counts, each failure with its cause, and what to do next."""
    counts = Counter(s.state for s in states.values())
    if counts["done"] == len(states):
        aliases = sum(1 for s in states.values() if s.same_as)
        same = f" ({aliases} of them the same run as another)" if aliases else ""
        return [f"{name}: all {len(states)} points are done{same}"]
    said = ", ".join(f"{counts[s]} {s}" for s in STATES if counts[s])
    lines = [f"{name}: {said}"]
    bad = [s for s in states.values() if s.state in ("failed", "lost")]
    lines += [
        f"  {s.state}: {s.point.stage} {s.point.short()} ({s.point.id}): {s.reason}"
        for s in bad[:MOST_NAMED]
    ]
    if len(bad) > MOST_NAMED:
        lines.append(f"  and {len(bad) - MOST_NAMED} more; see 'sparrow-lab status {name}'")
    reasons = Counter(s.reason for s in states.values() if s.state == "held")
    lines += [f"  held: {count} because {reason}" for reason, count in reasons.most_common(8)]
    if counts["failed"]:
        lines.append(
            f"'sparrow-lab logs ID' shows a failure whole; "
            f"'sparrow-lab retry {name} --failed' tries these again"
        )
    if counts["lost"]:
        lines.append("the same command tries lost points again")
    if counts["cancelled"]:
        lines.append(f"'sparrow-lab retry {name} --cancelled' takes cancelled points up again")
    if stopped:
        lines.append("the same command goes on from here")
    return lines
