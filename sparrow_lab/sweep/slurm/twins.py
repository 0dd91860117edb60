"""Points that are the same run as another, on a cluster: nobody waits for the other's end.

The element of such a point notes whose run it is in `same_as.json` and leaves. The one that
runs finishes its twins when it is done. The note is written before the owner's result is
looked at, and the owner looks for notes after its result is written: one of the two sees the
other, whatever the order.
"""

from __future__ import annotations

from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.stages import identical


def read_twin(sweep: SweepFolder, point_id: str) -> str | None:
    """The point whose run this one shares, if a job has found it so."""
    note = read_json(sweep.point(point_id).path / "same_as.json")
    return str(note["point"]) if isinstance(note, dict) and "point" in note else None


def note_twin(sweep: SweepFolder, point: PlannedPoint, owner: str) -> bool:
    """Leave `point` to the one that runs it; True when that one was done, and so is `point`."""
    sweep.point(point.id).write_point(point)
    write_json(sweep.point(point.id).path / "same_as.json", {"point": owner})
    return identical.write_alias(sweep, point, owner)


def forget_twin(sweep: SweepFolder, point_id: str) -> None:
    """The point is to run itself after all."""
    (sweep.point(point_id).path / "same_as.json").unlink(missing_ok=True)


def finish_twins(sweep: SweepFolder, plan: Plan) -> list[str]:
    """Finish every noted twin whose owner is done, and what follows it; their ids.

    An evaluation of a twin is a twin of the evaluation that ran: it needs no note.
    """
    finished = []
    for point in plan.points:
        if point.stage not in ("train", "evaluate") or sweep.point(point.id).read_result():
            continue
        if point.stage == "train":
            owner = read_twin(sweep, point.id)
        else:
            trained = sweep.point(point.needs.get("train", "")).read_result()
            owner = (
                identical.owner_of(sweep, point) if trained and trained.get("alias_of") else None
            )
        if owner is not None and identical.write_alias(sweep, point, owner):
            finished.append(point.id)
    return finished
