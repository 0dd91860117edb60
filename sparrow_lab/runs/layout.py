"""Where the files of a sweep and of its points lie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparrow_lab.errors import UserError, nearest
from sparrow_lab.runs import atomic
from sparrow_lab.runs.attempt import AttemptFolder, claimed, latest_number
from sparrow_lab.runs.plan import PLAN_SCHEMA, Plan, PlannedPoint

__all__ = ["AttemptFolder", "PointFolder", "SweepFolder", "find_sweep", "runs_root"]

DONE = "done"
"""The marker without which a result does not count."""

MADE = ("curve.json", "schedule.json")
"""Files that other points build on. A result names those of its point with their hashes, and
counts only while they are what they were."""


class PointFolder:
    """`points/<id>/`: what one planned point was, tried and gave."""

    def __init__(self, path: Path) -> None:
        self.path = path  # a Path already: to parse it again takes a third of reading a state
        self.id = self.path.name

    def __repr__(self) -> str:
        return f"PointFolder({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointFolder) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def read_point(self) -> PlannedPoint:
        """Raises UserError when `point.json` is missing or unreadable."""
        data = atomic.read_json(self.path / "point.json")
        if not isinstance(data, dict):
            raise UserError("no readable point.json; run the sweep again", str(self.path))
        return PlannedPoint.from_json(data)

    def write_point(self, point: PlannedPoint) -> None:
        """Write `point.json` unless it is there: a point's id fixes its content."""
        target = self.path / "point.json"
        if atomic.read_json(target) is None:
            # Not synced: the plan holds the same, and there may be thousands of them.
            atomic.write_json(target, {"schema": PLAN_SCHEMA, **point.to_json()}, durable=False)

    def read_result(self) -> dict[str, Any] | None:
        """The result, or None unless the file is whole and carries the success marker, and what
        the point made for others is as it was."""
        # plain text is several times faster than a Path, and a sweep may have 10,000 of them
        result = atomic.read_json(f"{self.path}/result.json")
        if not isinstance(result, dict) or result.get("marker") != DONE:
            return None
        return None if self._made_problem(result) else result

    def result_problem(self) -> str:
        """Why a `result.json` that is there does not count; empty if it does, or there is none."""
        path = self.path / "result.json"
        if not path.exists():
            return ""
        result = atomic.read_json(path)
        if not isinstance(result, dict):
            return "result.json is damaged: it is no whole JSON object"
        if result.get("marker") != DONE:
            return f"result.json is damaged: it has no marker '{DONE}'"
        return self._made_problem(result)

    def _made_problem(self, result: Mapping[str, Any]) -> str:
        """Which file that the result names is gone or another one; empty if none is."""
        made = result.get("made")
        for name, known in made.items() if isinstance(made, dict) else ():
            found = _hash(f"{self.path}/{name}")
            if found is None:
                return f"{name} is missing"
            if found != known:
                return f"{name} is damaged: it is not what this point made"
        return ""

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write `result.json` with the success marker. Non-finite metrics become strings.

        A result that is already there stays: a point is done once.
        """
        if self.read_result() is None:
            made = {name: found for name in MADE if (found := _hash(f"{self.path}/{name}"))}
            data = {**spelled(result), "marker": DONE, "schema": PLAN_SCHEMA, "id": self.id}
            data["made"] = made  # never that of the point whose result an alias repeats
            atomic.write_json(self.path / "result.json", data)

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a file of this point, whole or not at all."""
        atomic.write_bytes(self.path / name, data)

    def attempts(self) -> list[AttemptFolder]:
        """Claimed attempts, oldest first."""
        return claimed(self.path / "attempts")

    def new_attempt(self, owner: Mapping[str, Any]) -> AttemptFolder:
        """Claim the next attempt for `owner` (host, pid, start, token); no two callers get one.

        Whoever held an earlier attempt has lost its claim from here on.
        """
        folder = self.path / "attempts"
        while True:
            attempt = AttemptFolder(folder / str(latest_number(folder) + 1))
            if atomic.create_json(attempt.claim_path, {"schema": PLAN_SCHEMA, **owner}):
                return attempt

    def followed(self) -> PointFolder:
        """The point that really ran: this one, or the one that its result is an alias of."""
        result = self.read_result()
        alias = result.get("alias_of") if result else None
        return PointFolder(self.path.parent / alias).followed() if alias else self


class SweepFolder:
    """`runs/<sweep>/`."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._points = self.path / "points"

    def __repr__(self) -> str:
        return f"SweepFolder({str(self.path)!r})"

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def plan_path(self) -> Path:
        return self.path / "plan.json"

    @property
    def ledger_path(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def source_path(self) -> Path:
        """The submitted experiment file, as it was."""
        return self.path / "sweep.yaml"

    @property
    def jobs(self) -> Path:
        """One folder a submission, named by its token; the scheduler's own files."""
        return self.path / "jobs"

    @property
    def code(self) -> Path:
        """One folder a version of the code that was submitted to a cluster, by content hash."""
        return self.path / "code"

    def submission(self, token: str) -> Path:
        """What was handed to a cluster under this token: the chunk, its script, its logs."""
        return self.path / "submitted" / token

    def breaker(self, stage: str) -> Path:
        """What the jobs of a stage tell each other of success and failure."""
        return self.path / "breaker" / stage

    @property
    def starts(self) -> Path:
        """The marks of a cluster's jobs whose workers have not begun, by kind of set-up."""
        return self.path / "starts"

    def point(self, point_id: str) -> PointFolder:
        return PointFolder(self._points / point_id)

    def points(self) -> list[PointFolder]:
        """The folders of the plan's points, in plan order (they may not exist yet)."""
        return [self.point(p.id) for p in self.read_plan().points]

    def read_plan(self) -> Plan:
        """Raises UserError when there is no plan, or one of a later version."""
        data = atomic.read_json(self.plan_path)
        if not isinstance(data, dict) and self.plan_path.exists():
            raise UserError(
                "this file is damaged; delete it and run the sweep's file again: what is done "
                "stays done",
                str(self.plan_path),
            )
        if not isinstance(data, dict):
            raise UserError("no plan.json here; is this a sweep's folder?", str(self.path))
        return Plan.from_json(data, where=str(self.plan_path))

    def write_plan(self, plan: Plan) -> None:
        """Write every point's `point.json`, then the plan."""
        for point in plan.points:
            self.point(point.id).write_point(point)
        atomic.write_text(self.plan_path, plan.text())

    def claim_effective(self, key: str, point_id: str) -> str:
        """Claim the run that `key` stands for; return the id of the point that owns it.

        The first caller owns it. An owner that will never run (dropped from the plan,
        cancelled) is replaced through `take_effective`.
        """
        path = self.path / "effective" / key
        if atomic.create_json(path, {"point": point_id}):
            return point_id
        owner = atomic.read_json(path)
        return str(owner["point"]) if isinstance(owner, dict) else point_id

    def effective_owner(self, key: str) -> str | None:
        """The id of the point that has claimed the run that `key` stands for; None if none has."""
        owner = atomic.read_json(self.path / "effective" / key)
        return str(owner["point"]) if isinstance(owner, dict) else None

    def claimed_keys(self) -> frozenset[str]:
        """The keys of all runs that were ever claimed."""
        try:
            return frozenset(os.listdir(self.path / "effective"))
        except FileNotFoundError:
            return frozenset()

    def take_effective(self, key: str, point_id: str) -> None:
        """Make `point_id` the owner of `key`, whoever owned it before."""
        atomic.write_json(self.path / "effective" / key, {"point": point_id})


def _hash(path: str) -> str | None:
    """The beginning of a file's SHA-256; None when there is no such file."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).hexdigest()[:16]
    except (FileNotFoundError, NotADirectoryError):
        return None


def spelled(value: Any) -> Any:
    """`value` with non-finite floats as "nan", "inf", "-inf", for JSON."""
    if value is None or isinstance(value, (str, int)):
        return value  # first, as most values of 10,000 points are such
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "nan" if value != value else ("inf" if value > 0 else "-inf")
    if isinstance(value, (dict, Mapping)):  # a plain dict is known at once, a Mapping asked for
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [spelled(item) for item in value]
    return value


def runs_root(root: Path | None = None) -> Path:
    """The folder of all sweeps: `root`, else $SPARROW_RUNS, else ./runs."""
    return Path(root) if root is not None else Path(os.environ.get("SPARROW_RUNS") or "runs")


def find_sweep(name_or_path: str, root: Path | None = None) -> SweepFolder:
    """The sweep of that name under `root`, or at that path.

    Raises UserError, with the nearest name, when there is no plan in either place.
    """
    base = runs_root(root)
    for candidate in (base / name_or_path, Path(name_or_path)):
        with suppress(OSError):  # a name that the file system does not take
            if (candidate / "plan.json").is_file():
                return SweepFolder(candidate)
    try:
        known = sorted(p.name for p in base.iterdir() if (p / "plan.json").is_file())
    except OSError:
        known = []
    hint = nearest(name_or_path, known)
    if not hint:
        hint = f"; sweeps there: {', '.join(known[:8])}" if known else "; there is no sweep there"
    raise UserError(f"no sweep '{name_or_path}' in {base}{hint}", "SWEEP")
