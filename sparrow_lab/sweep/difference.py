"""What a changed experiment file changes in a sweep that exists."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint


@dataclass(frozen=True)
class Difference:
    """Points that both plans have, that only the new one has, and that only the old one has."""

    kept: tuple[PlannedPoint, ...]
    new: tuple[PlannedPoint, ...]
    dropped: tuple[PlannedPoint, ...]

    @property
    def first(self) -> bool:
        """Whether there was nothing before."""
        return not self.kept and not self.dropped

    def __str__(self) -> str:
        return f"{len(self.kept)} kept, {len(self.new)} new, {len(self.dropped)} dropped"


def compare(old: Plan | None, new: Plan) -> Difference:
    """Compare by id; without an old plan everything is new."""
    before = {p.id for p in old.points} if old else set()
    after = {p.id for p in new.points}
    return Difference(
        kept=tuple(p for p in new.points if p.id in before),
        new=tuple(p for p in new.points if p.id not in before),
        dropped=tuple(p for p in (old.points if old else ()) if p.id not in after),
    )


def against_folder(sweep: SweepFolder, new: Plan) -> Difference:
    """Compare with the plan in the folder, if there is one.

    Raises UserError when the two plans share no point: that is another sweep, which
    needs another name.
    """
    difference = compare(sweep.read_plan() if sweep.plan_path.exists() else None, new)
    if difference.dropped and not difference.kept:
        raise UserError(
            f"the sweep '{new.name}' there shares no point with this file "
            f"({len(difference.dropped)} there, {len(difference.new)} here); "
            "give this one another name, or another folder with --runs",
            str(sweep.path),
        )
    return difference


def stage_counts(points: tuple[PlannedPoint, ...]) -> str:
    """`3 calibrate, 12 train`: points by stage, in the order in which they come."""
    counts = Counter(p.stage for p in points)
    return ", ".join(f"{count} {stage}" for stage, count in counts.items()) or "no points"
