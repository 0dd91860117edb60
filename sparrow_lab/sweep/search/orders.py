"""What a controller on a cluster is to do, as it lies in the sweep's folder for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparrow_lab.config.schema import SweepConfig
from sparrow_lab.errors import UserError
from sparrow_lab.runs.atomic import read_json, write_json
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.search.at_work import controller_folder

SCHEMA = 1
POLL_S = 15.0
"""Time between two looks at the files and the queue."""


@dataclass(frozen=True)
class Orders:
    """The search as it was submitted: later edits of the experiment file change nothing.

    `cluster` is `Cluster.to_json()`; `stages` are stage functions, for tests.
    """

    config: SweepConfig
    source_dir: Path
    options: Options
    cluster: Mapping[str, Any]
    stages: Mapping[str, str] | None = None
    poll_s: float = POLL_S

    def write(self, sweep: SweepFolder) -> None:
        """Put them where the controller looks; one that is at work takes them up."""
        write_json(
            orders_path(sweep),
            {
                "schema": SCHEMA,
                "config": self.config.model_dump(mode="json", exclude_unset=True),
                "source_dir": str(self.source_dir.resolve()),
                "options": self.options.to_json(),
                "cluster": dict(self.cluster),
                "stages": None if self.stages is None else dict(self.stages),
                "poll_s": self.poll_s,
            },
        )

    @classmethod
    def read(cls, sweep: SweepFolder) -> Orders:
        """Raises UserError when there are none, or of another version."""
        path = orders_path(sweep)
        data = read_json(path)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UserError("no readable orders for a controller; run the sweep again", str(path))
        return cls(
            SweepConfig.model_validate(data["config"]),
            Path(data["source_dir"]),
            Options.from_json(data["options"]),
            data["cluster"],
            data["stages"],
            float(data["poll_s"]),
        )


def orders_path(sweep: SweepFolder) -> Path:
    """Where the orders lie."""
    return controller_folder(sweep) / "orders.json"
