"""The few things that an import asks of MLflow, in batches that it accepts."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlparse

from sparrow_lab.tracking.cells import Cell
from sparrow_lab.tracking.connection import StoreError, connect, store_errors
from sparrow_lab.tracking.store import Store
from sparrow_lab.tracking.tags import SWEEP
from sparrow_lab.tracking.views import experiment_tags

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

METRICS_A_BATCH = 1000
PARAMS_A_BATCH = 100
PAGE = 500
PICTURE = "acceptance"

T = TypeVar("T")


@dataclass
class Known:
    """A run as MLflow has it."""

    run_id: str
    name: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)


class Writer:
    """One experiment of one store. Every method may raise StoreError.

    `beat` is called before each write; it renews the lease, or raises when it is lost.
    """

    def __init__(self, store: Store, experiment: str, beat: Callable[[], None]) -> None:
        self.store = store
        self.experiment = experiment
        self._beat = beat
        self._client: MlflowClient = connect(store)
        self.experiment_id = self._ensure_experiment()

    def runs(self, sweep: str) -> Iterator[Known]:
        """The runs of a sweep that were not deleted, oldest first."""
        token: str | None = None
        while True:
            with store_errors(self.store):
                page = self._client.search_runs(
                    [self.experiment_id],
                    filter_string=f"tags.`{SWEEP}` = '{sweep}'",
                    max_results=PAGE,
                    order_by=["attributes.start_time ASC"],
                    page_token=token,
                )
            yield from map(_known, page)
            token = page.token
            if not token:
                return

    def create(self, name: str, started: float, tags: Mapping[str, str]) -> Known:
        """A new run with tags; `started` in seconds since 1970."""
        self._beat()
        with store_errors(self.store):
            run = self._client.create_run(
                self.experiment_id,
                start_time=round(started * 1000),
                tags=dict(tags),
                run_name=name,
            )
        return _known(run)

    def delete(self, run: Known, why: str) -> None:
        """Move a run to MLflow's bin, saying why in a tag."""
        self._beat()
        with store_errors(self.store):
            self._client.set_tag(run.run_id, "sparrow.replaced", why)
            self._client.delete_run(run.run_id)

    def log(self, run: Known, cells: Sequence[Cell]) -> None:
        """Metric values, up to 1000 a call."""
        from mlflow.entities import Metric

        for batch in batches(cells, METRICS_A_BATCH):
            self._beat()
            metrics = [Metric(cell.name, cell.value, cell.time, cell.step) for cell in batch]
            with store_errors(self.store):
                self._client.log_batch(run.run_id, metrics=metrics)

    def log_params(self, run: Known, params: Mapping[str, str]) -> None:
        """Add params that the run has not got; those that it has are never changed."""
        from mlflow.entities import Param

        new = [(key, value) for key, value in params.items() if key not in run.params]
        for batch in batches(new, PARAMS_A_BATCH):
            self._beat()
            entities = [Param(key, value) for key, value in batch]
            with store_errors(self.store):
                self._client.log_batch(run.run_id, params=entities)
        run.params.update(new)

    def set_tags(self, run: Known, tags: Mapping[str, str], optional: Iterable[str] = ()) -> None:
        """Set tags that differ; remove those of `optional` that `tags` no longer has."""
        from mlflow.entities import RunTag

        changed = [(key, value) for key, value in tags.items() if run.tags.get(key) != value]
        for batch in batches(changed, PARAMS_A_BATCH):
            self._beat()
            entities = [RunTag(key, value) for key, value in batch]
            with store_errors(self.store):
                self._client.log_batch(run.run_id, tags=entities)
        run.tags.update(changed)
        for key in optional:
            if key in run.tags and key not in tags:
                with store_errors(self.store):
                    self._client.delete_tag(run.run_id, key)
                del run.tags[key]

    def set_status(self, run: Known, name: str, status: str, ended: float | None) -> None:
        """Name and status; a status that is an end also gets its time (seconds since 1970)."""
        if (run.status, run.name) == (status, name):
            return
        self._beat()
        with store_errors(self.store):
            if status in ("FINISHED", "FAILED", "KILLED"):
                end = round(ended * 1000) if ended else None
                self._client.set_terminated(run.run_id, status=status, end_time=end)
                self._client.update_run(run.run_id, name=name)
            else:
                self._client.update_run(run.run_id, status=status, name=name)
        run.status, run.name = status, name

    def picture(self, run: Known, step: int, time: int, png: bytes) -> None:
        """A picture at a step: as a file that the page previews, and for its image grids."""
        import PIL.Image

        self._beat()
        with store_errors(self.store), tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch) / f"step-{step:06d}.png"
            path.write_bytes(png)
            self._client.log_artifact(run.run_id, str(path), PICTURE)
            image = PIL.Image.open(io.BytesIO(png)).convert("RGB")
            self._client.log_image(
                run.run_id, image, key=PICTURE, step=step, timestamp=time, synchronous=True
            )

    def artifact(self, run: Known, path: Path) -> None:
        """A file, under its own name; one of that name is replaced."""
        self._beat()
        with store_errors(self.store):
            self._client.log_artifact(run.run_id, str(path))

    def _ensure_experiment(self) -> str:
        """The experiment's id; it is made, or taken back out of MLflow's bin, if need be."""
        tags = experiment_tags()
        with store_errors(self.store):
            found = self._client.get_experiment_by_name(self.experiment)
            if found is None:
                self._beat()
                return str(
                    self._client.create_experiment(self.experiment, self._place(), tags=tags)
                )
            if found.lifecycle_stage == "deleted":
                self._beat()
                self._client.restore_experiment(found.experiment_id)
            self._check_place(found.artifact_location)
            for key, value in tags.items():
                if found.tags.get(key) != value:
                    self._client.set_experiment_tag(found.experiment_id, key, value)
        return str(found.experiment_id)

    def _place(self) -> str | None:
        """Where artifacts of the experiment go: absolute, or None for the server to choose."""
        artifacts = self.store.artifacts
        return (artifacts / self.experiment.replace("/", "_")).as_uri() if artifacts else None

    def _check_place(self, location: str) -> None:
        """Refuse our own database once the runs folder was moved: its artifacts have no place."""
        expected = self._place()
        if self.store.own and expected and _path(location) != _path(expected):
            raise StoreError(
                f"{self.store.database} was made when the runs were elsewhere "
                f"(artifacts in {_path(location)}); delete it and sync again, "
                "everything is rebuilt from the run folders"
            )


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` items, in order."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _known(run: Run) -> Known:
    data: Any = run.data
    return Known(
        run.info.run_id,
        run.info.run_name or "",
        run.info.status,
        dict(data.tags),
        dict(data.params),
    )


def _path(location: str) -> str:
    return unquote(urlparse(location).path).rstrip("/")
