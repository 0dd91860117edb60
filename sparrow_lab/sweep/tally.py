"""How often a point was tried, and whether that was in vain."""

from __future__ import annotations

from sparrow_lab.runs.layout import SweepFolder


def may_try_again(
    sweep: SweepFolder, point_id: str, floor: int, lost_floor: int, retries: int
) -> bool:
    """Whether a failed point has retries left.

    Args:
        floor: attempts up to this number were forgiven by `retry`.
        lost_floor: workers lost up to this attempt do not count: they belong to an earlier run.
        retries: new attempts after a crash.

    Errors and timeouts count, and workers that were lost in this run. Interruptions do not.
    A user's mistake is not tried again: it would be the same.
    """
    counted = 0
    for attempt in sweep.point(point_id).attempts():
        failure = attempt.read_failure() or {}
        if failure.get("kind") in ("error", "timeout") and attempt.number > floor:
            counted += 1
            if failure.get("type") == "UserError":
                return False
        elif failure.get("kind") == "lost":
            counted += attempt.number > max(floor, lost_floor)
    return counted <= retries


def stuck(sweep: SweepFolder, point_id: str, limit: int, least_s: float) -> bool:
    """Whether the last `limit` attempts that lasted at least `least_s` seconds were interrupted
    and none of them got further than all before it. A limit of 0 never says so.

    Short attempts do not count: to be preempted early, and often, is no fault of the point.
    """
    furthest, idle = -1, 0
    for attempt in sweep.point(point_id).attempts():
        done = int((attempt.read_progress() or {}).get("done") or 0)
        failure, claim = attempt.read_failure() or {}, attempt.read_claim() or {}
        lasted = float(failure.get("time") or 0) - float(claim.get("time") or 0)
        if done > furthest:
            furthest, idle = done, 0
        elif failure.get("kind") == "interrupted" and lasted >= least_s:
            idle += 1
    return limit > 0 and idle >= limit
