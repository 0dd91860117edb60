"""What the launcher's tests share: workers that can import the fakes, and nothing left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan
from tests.sweep.watching import workers_under

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))


@pytest.fixture
def make_sweep(tmp_path: Path) -> Iterator[Callable[[Plan], SweepFolder]]:
    """Write a plan into a folder of its own; at the end no worker of it may live."""

    def make(plan: Plan) -> SweepFolder:
        sweep = SweepFolder(tmp_path / plan.name)
        sweep.write_plan(plan)
        return sweep

    yield make
    left = workers_under(tmp_path)
    for process in left:
        process.kill()
    assert not left
