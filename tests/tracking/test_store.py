"""Where MLflow's records go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.ledger import Ledger
from sparrow_lab.tracking import filesystem, store
from sparrow_lab.tracking.filesystem import Mount, local_folder, network_kind
from tests.tracking.simulate import make_plan, make_sweep

MOUNTS = [
    Mount("/", "ext4"),
    Mount("/home", "nfs4"),
    Mount("/scratch", "lustre"),
    Mount("/scratch/local", "xfs"),
    Mount("/data", "fuse.sshfs"),
    Mount("/snap", "fuse.squashfuse"),
]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/runs", "nfs4"),
        ("/homework/runs", None),
        ("/scratch/runs", "lustre"),
        ("/scratch/local/runs", None),
        ("/data/x", "fuse.sshfs"),
        ("/snap/x", None),
        ("/tmp/runs", None),
    ],
)
def test_the_innermost_mount_decides(path: str, kind: str | None) -> None:
    assert network_kind(Path(path), MOUNTS) == kind


def test_the_local_folder_avoids_a_network_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = local_folder(Path("/scratch/runs"), MOUNTS)
    assert here.is_relative_to(tmp_path / "cache")
    assert local_folder(Path("/scratch/other/runs"), MOUNTS) != here
    monkeypatch.setenv("XDG_CACHE_HOME", "/home/me/.cache")
    there = local_folder(Path("/scratch/runs"), MOUNTS)
    assert network_kind(there, MOUNTS) is None
    assert str(os.getuid()) in str(there)


def test_default_lies_beside_the_sweeps(tmp_path: Path) -> None:
    found = store.resolve(tmp_path / "runs")
    assert found.database == tmp_path / "runs" / "mlflow.db"
    assert found.uri == f"sqlite:///{found.database}"
    assert found.artifacts == tmp_path / "runs" / "mlartifacts"
    assert (found.own, found.notices) == (True, ())


def test_on_a_network_file_system_it_is_local_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        filesystem, "mounts", lambda: [Mount("/", "ext4"), Mount("/mnt/l", "lustre")]
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = store.resolve(Path("/mnt/l/runs"))
    assert found.database is not None and found.database.is_relative_to(tmp_path)
    assert found.artifacts is not None and found.artifacts.is_relative_to(tmp_path)
    assert found.lock.is_relative_to(tmp_path)
    (notice,) = found.notices
    assert "lustre" in notice and str(found.database) in notice


@pytest.mark.parametrize("uri", ["./mlruns", "file:///tmp/mlruns", "mlruns", "C:/mlruns"])
def test_the_file_store_is_refused_with_what_to_use(tmp_path: Path, uri: str) -> None:
    with pytest.raises(UserError, match="file store") as caught:
        store.resolve(tmp_path, uri)
    assert "sqlite:///" in caught.value.message
    assert caught.value.where == "--uri"


@pytest.mark.parametrize("uri", ["ftp://host/x", "sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_other_unusable_uris_are_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(UserError):
        store.resolve(tmp_path, uri)


def test_a_server_decides_about_artifacts(tmp_path: Path) -> None:
    found = store.resolve(tmp_path, "http://127.0.0.1:5000")
    assert (found.is_server, found.database, found.artifacts) == (True, None, None)
    database = store.resolve(tmp_path, "postgresql+psycopg2://u@h/db")
    assert not database.is_server and database.artifacts == tmp_path / "mlartifacts"


def test_settings_come_from_the_last_run_then_the_file(tmp_path: Path) -> None:
    text = "tracking:\n  uri: sqlite:////tmp/x.db\n  experiment: shared\n"
    sweep = make_sweep(tmp_path, make_plan("demo", [0.9]), text)
    assert store.settings(sweep) == ("sqlite:////tmp/x.db", "shared")
    tracking = {"uri": None, "experiment": "mine"}
    Ledger(sweep.ledger_path).append("opened", notes={"tracking": tracking})
    assert store.settings(sweep) == (None, "mine")


def test_a_sweep_without_its_file_has_default_settings(tmp_path: Path) -> None:
    assert store.settings(SweepFolder(tmp_path / "gone")) == (None, "gone")


def test_leftover_artifacts_are_told(tmp_path: Path) -> None:
    (tmp_path / "mlartifacts" / "demo").mkdir(parents=True)
    (notice,) = store.resolve(tmp_path).notices
    assert "delete the folder now or with the new database" in notice
