"""What every test runs under: its own folders, one thread, no network, the same random cases.

Nothing here imports torch, so that a run of the light tests stays light.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from sparrow_lab.fake_slurm import FakeSlurm
from tests.slurm.real import RealSlurm

# Before any library is imported: workers started by a test inherit it too.
os.environ.update(
    HF_HUB_OFFLINE="1",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
)
# Without a GPU the kernels run in Triton's interpreter; Triton asks for this when it is imported.
GPU = Path("/dev/nvidiactl").exists()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")

ENV_OF_THE_USER = ("SPARROW_RUNS", "SPARROW_MODELS")
"""Folders that a test must never write into: each points to a temporary folder instead."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Without a GPU its tests are skipped, so that `pytest -k kernel` runs everywhere."""
    for item in items:
        if not GPU and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point runs, models and MLflow away from the user's own for the whole session."""
    root: Path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for name in ENV_OF_THE_USER:
            patch.setenv(name, str(root / name.lower()))
        for name in [key for key in os.environ if key.startswith("MLFLOW_")]:
            patch.delenv(name)
        yield


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    """Undo what an earlier test did to torch's threads; a no-op while torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[RealSlurm]:
    """The running test cluster, whole, with an empty queue before and after.

    For tests marked `slurm`; without the cluster they fail, because only who asks for
    that marker runs them.
    """
    cluster = RealSlurm()
    if not cluster.conf.exists():
        pytest.fail("no cluster: slurm/test-cluster start, or make test-slurm", pytrace=False)
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    with cluster.alone():
        cluster.make_whole()
        yield cluster
        cluster.make_whole()


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSlurm]:
    """A pretended Slurm on the PATH that runs jobs; nothing of them lives after the test."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    with FakeSlurm(tmp_path / "slurm") as fake:
        monkeypatch.setenv("PATH", fake.path)
        yield fake


# -------------------------------------------------------------- what did not run, and why
_deselected: Counter[str] = Counter()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count tests that -m or -k left out, by their markers."""
    special = ("gpu", "slurm", "browser", "slow")
    for item in items:
        names = [name for name in special if item.get_closest_marker(name)]
        _deselected["marked " + ", ".join(names) if names else "not asked for"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands its counts to the process that sums up."""
    told = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["deselected"] = dict(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over a worker's counts; each worker sees all tests, so any one's are the whole."""
    told = getattr(node, "workeroutput", {}).get("deselected", {})
    for name, count in told.items():
        _deselected[name] = max(_deselected[name], count)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped and what was left out; silence would read as "all passed"."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        where = report.longrepr
        reasons[where[2] if isinstance(where, tuple) else str(where)] += 1
    if not reasons and not _deselected:
        return
    terminalreporter.section("did not run")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:5d} skipped: {reason.removeprefix('Skipped: ')}")
    for reason, count in _deselected.most_common():
        terminalreporter.line(f"{count:5d} left out: {reason}")
