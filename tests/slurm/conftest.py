"""Clusters for the tests of faults: a real and a pretended one, with a site file to change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparrow_lab.fake_slurm import FakeSlurm
from tests.contracts.backends import Backend
from tests.contracts.conftest import ROOT, site_file
from tests.slurm.real import RealSlurm

MakeBackend = Callable[..., Backend]


@pytest.fixture(autouse=True)
def _workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))


@pytest.fixture
def real(slurm: RealSlurm, tmp_path: Path) -> Iterator[MakeBackend]:
    """Make a backend on the real cluster; its arguments are those of `site_file`."""
    made: list[Backend] = []

    def make(**site: Any) -> Backend:
        made.append(Backend("real", tmp_path, site_file(tmp_path, **site)))
        return made[-1]

    yield make
    slurm.make_whole()
    for backend in made:
        backend.close()


@pytest.fixture
def fake(fake_slurm: FakeSlurm, tmp_path: Path) -> Iterator[MakeBackend]:
    """The same on the pretended cluster."""
    made: list[Backend] = []

    def make(**site: Any) -> Backend:
        made.append(Backend("fake", tmp_path, site_file(tmp_path, **site)))
        return made[-1]

    yield make
    fake_slurm.stop()
    for backend in made:
        backend.close()
