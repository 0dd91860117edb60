"""Points that are the same run as another, on a cluster: nobody waits for the other's end.

The element of such a point notes whose run it is and leaves: `same_as.json` in the point's
folder, and its name under `twins/<owner>/`. The one that runs finishes its twins when it is
done; one that is cancelled leaves them to the next submission, which lets one of them run. The
note is written before the owner's result is looked at, and the owner looks for notes
after its result is written: one of the two sees the other, whatever the order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import PlannedPoint
from sparrow_lab.stages import identical


def read_twin(sweep: SweepFolder, point_id: str) -> str | None:
    """The point whose run this one shares, if a job has found it so."""
    note = read_json(sweep.point(point_id).path / "same_as.json")
    return str(note["point"]) if isinstance(note, dict) and "point" in note else None


def note_twin(sweep: SweepFolder, point: PlannedPoint, owner: str) -> bool:
    """Leave `point` to the one that runs it; True when that one was done, and so is `point`."""
    sweep.point(point.id).write_point(point)
    write_json(sweep.point(point.id).path / "same_as.json", {"point": owner})
    write_json(sweep.path / "twins" / owner / point.id, {"point": point.id})
    return identical.write_alias(sweep, point, owner)


def forget_twin(sweep: SweepFolder, point_id: str) -> None:
    """The point is to run itself after all."""
    (sweep.point(point_id).path / "same_as.json").unlink(missing_ok=True)


def left_without(sweep: SweepFolder, owners: Iterable[str]) -> list[str]:
    """The points without a result that left their runs to these owners."""
    return [
        twin
        for owner in owners
        for twin in _names(sweep, "twins", owner)
        if read_twin(sweep, twin) == owner and sweep.point(twin).read_result() is None
    ]


def finish_twins(sweep: SweepFolder, owners: Iterable[str] | None = None) -> list[str]:
    """Finish the noted twins of owners that are done, and what follows them; their ids.

    Args:
        owners: ids of the points that ran; None looks at all that have twins.

    An evaluation of a twin is a twin of the evaluation of the owner, and needs no note.
    """
    pairs = [
        (owner, twin)
        for owner in (_names(sweep, "twins") if owners is None else owners)
        for twin in _names(sweep, "twins", owner)
    ]
    pairs = [(o, t) for o, t in pairs if read_twin(sweep, t) == o]
    if not pairs:
        return []
    by_train: dict[str, list[PlannedPoint]] = {}
    for point in sweep.read_plan().points:
        if point.stage == "evaluate" and "train" in point.needs:
            by_train.setdefault(point.needs["train"], []).append(point)
    finished: list[str] = []
    for owner, twin in pairs:
        if _finish(sweep, sweep.point(twin).read_point(), owner):
            finished.append(twin)
        if sweep.point(twin).read_result() is None:
            continue
        finished += [
            theirs.id
            for theirs in by_train.get(twin, [])
            for ours in by_train.get(owner, [])
            if _same(sweep, theirs, ours) and _finish(sweep, theirs, ours.id)
        ]
    return finished


def _finish(sweep: SweepFolder, point: PlannedPoint, owner: str) -> bool:
    """Write the alias of a point that has no result yet; whether this call did."""
    if sweep.point(point.id).read_result() is not None:
        return False
    return identical.write_alias(sweep, point, owner)


def _same(sweep: SweepFolder, twin: PlannedPoint, owner: PlannedPoint) -> bool:
    """Whether the twin's evaluation is the owner's, which is done."""
    if sweep.point(owner.id).read_result() is None:
        return False
    key = identical.effective_key(sweep, owner)
    return key is not None and key == identical.effective_key(sweep, twin)


def _names(sweep: SweepFolder, *path: str) -> list[str]:
    try:
        return sorted(n for n in os.listdir(sweep.path.joinpath(*path)) if not n.startswith("."))
    except OSError:
        return []
