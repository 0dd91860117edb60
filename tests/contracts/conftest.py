"""The backends, each in a fresh folder; nothing of a test lives after it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.backends import Backend

ROOT = Path(__file__).parents[2]

SITE = """\
partition: {partition}
gpus: {gpus}
cpus: 1
mem: 1G
time: {minutes}
grace: 15
cache: null
"""


def site_file(
    folder: Path, partition: str = "main", gpus: int = 1, minutes: int = 30, more: str = ""
) -> Path:
    """A site file for tests. With a pretended GPU for each job, no more than four run at once."""
    path = folder / "site.yaml"
    path.write_text(SITE.format(partition=partition, gpus=gpus, minutes=minutes) + more)
    return path


@pytest.fixture(autouse=True)
def _workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))


@pytest.fixture(
    params=["local", "fake", pytest.param("real", marks=[pytest.mark.slurm, pytest.mark.slow])]
)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    """This machine, the pretended Slurm, and the real one for `-m slurm`."""
    kind = str(request.param)
    if kind != "local":
        request.getfixturevalue("fake_slurm" if kind == "fake" else "slurm")
    found = Backend(kind, tmp_path, None if kind == "local" else site_file(tmp_path))
    yield found
    found.close()
