"""Points on this machine that wait because their run is another's, as the files say.

The launcher asks for the owner of a run when a point is ready, and leaves the point waiting
while that one is at it. Here the same is read, and nothing claimed: who owns what is in
`effective/`. A cluster's jobs leave notes of their own (`slurm/twins`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.stages import identical
from sparrow_lab.sweep.states import PointState


def with_owners(sweep: SweepFolder, states: Mapping[str, PointState]) -> dict[str, PointState]:
    """The states with the reason why a point waits, or is held, for another name of its run.

    Needs come first. What is planned and knows of no other reason is looked at; nothing else is
    read while no run has been claimed.
    """
    out = dict(states)
    claimed = sweep.claimed_keys()
    if not claimed:
        return out
    digests: dict[str, str | None] = {}
    for point_id, state in states.items():
        if state.state != "planned" or state.reason:
            continue
        trained = out.get(state.point.needs.get("train", ""))
        if trained is not None and trained.twin_of:
            said = f"its train is the same run as {trained.twin_of}"
            out[point_id] = replace(state, reason=said, twin_of=trained.twin_of)
        elif all(n in out and out[n].state == "done" for n in state.point.needs.values()):
            key = identical.effective_key(sweep, state.point, digests)
            owner = sweep.effective_owner(key) if key and key in claimed else None
            if owner is not None and owner != point_id:
                out[point_id] = _waits(state, owner, out.get(owner))
    return out


def _waits(state: PointState, owner: str, other: PointState | None) -> PointState:
    """A point whose run `owner` has claimed: what the launcher does with it, in words."""
    reason = f"the same run as {owner}"
    if other is not None and other.state == "failed":
        return replace(state, state="held", reason=f"{reason}, which failed", twin_of=owner)
    if other is None or other.state == "cancelled":
        gone = "was cancelled" if other is not None else "has left the file"
        reason = f"{reason}, which {gone}; the same command runs this one"
    return replace(state, reason=reason, twin_of=owner)
