"""What a sweep is going to do: its points in order, as they stand in `plan.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparrow_lab.errors import UserError

PLAN_SCHEMA = 1
"""Version of the files of a run folder (plan.json, point.json, result.json, claim.json)."""


@dataclass(frozen=True)
class PlannedPoint:
    """One stage of one configuration.

    `needs` names the points whose results this one reads, by stage; `label` holds the
    short names of the swept fields for people; `config` is the resolved `PointConfig`.
    """

    id: str
    stage: str
    needs: dict[str, str] = field(default_factory=dict)
    label: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The form of `point.json` and of an entry of `plan.json`, without the schema."""
        return {
            "id": self.id,
            "stage": self.stage,
            "needs": dict(self.needs),
            "label": dict(self.label),
            "config": dict(self.config),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PlannedPoint:
        """Inverse of `to_json`; unknown keys of a later version are left out."""
        return cls(
            id=data["id"],
            stage=data["stage"],
            needs=dict(data.get("needs", {})),
            label=dict(data.get("label", {})),
            config=dict(data.get("config", {})),
        )

    def short(self) -> str:
        """`tau=0.86,seed=0`: the label as one word, the id when there is none.

        A schedule that is not a tau stands by its own name: `dense`, `budget=64`.
        """
        parts = [
            str(v) if k == "tau" and isinstance(v, str) else f"{k}={v}"
            for k, v in self.label.items()
        ]
        return ",".join(parts) or self.id


@dataclass(frozen=True)
class Plan:
    """A sweep's points, each after those it needs, and the rule by which runs are judged."""

    name: str
    verdict: dict[str, Any] = field(default_factory=dict)
    points: tuple[PlannedPoint, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form of `plan.json`."""
        return {
            "schema": PLAN_SCHEMA,
            "name": self.name,
            "verdict": dict(self.verdict),
            "points": [p.to_json() for p in self.points],
        }

    def text(self) -> str:
        """The text of `plan.json`: one point a line, which is quick for 10,000 of them."""
        data = self.to_json()
        lines = ",\n".join(json.dumps(point, allow_nan=False) for point in data.pop("points"))
        head = json.dumps(data, allow_nan=False)
        return f'{head[:-1]}, "points": [\n{lines}\n]}}\n'

    @classmethod
    def from_json(cls, data: Mapping[str, Any], where: str | None = None) -> Plan:
        """Inverse of `to_json`. Raises UserError for a plan of a later version."""
        if data.get("schema") != PLAN_SCHEMA:
            raise UserError(
                f"plan of schema {data.get('schema')!r}; this version reads {PLAN_SCHEMA}", where
            )
        points = tuple(PlannedPoint.from_json(p) for p in data["points"])
        return cls(name=data["name"], verdict=dict(data.get("verdict", {})), points=points)

    def point(self, point_id: str) -> PlannedPoint:
        """The point of that id. Raises KeyError when there is none."""
        for point in self.points:
            if point.id == point_id:
                return point
        raise KeyError(point_id)
