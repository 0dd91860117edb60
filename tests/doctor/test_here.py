"""Checks of this machine: packages, driver, folders, clocks, caches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparrow_lab.doctor import machine, places
from sparrow_lab.doctor.check import Check


@pytest.mark.parametrize(
    ("cuda", "driver", "level", "words"),
    [
        ("12.8", "525.60.13", "ok", "runs CUDA 12.8"),
        ("12.8", "570.124", "ok", "driver 570.124"),
        ("12.8", "470.82.01", "fail", "too old for CUDA 12.8"),
        ("13.0", "575.51.03", "fail", "too old for CUDA 13.0"),
        ("13.0", "580.65.06", "ok", "runs CUDA 13.0"),
        (None, "580.65.06", "warn", "built without CUDA"),
        (None, None, "ok", "workers use the CPU"),
        ("12.8", None, "ok", "torch was built for CUDA 12.8"),
    ],
)
def test_driver(cuda: str | None, driver: str | None, level: str, words: str) -> None:
    check = machine.judge_driver(cuda, driver)
    assert (check.level, words in check.found) == (level, True), check
    assert bool(check.remedy) == (level != "ok")


def test_the_cuda_of_torch_is_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    version = package / "version.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    version.write_text("__version__ = '2.9'\ncuda: Optional[str] = '12.8'\nhip = None\n")
    assert machine.torch_cuda() == "12.8"
    version.write_text("__version__ = '2.9+cpu'\ncuda: Optional[str] = None\n")
    assert machine.torch_cuda() is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_packages().level == "ok"
    monkeypatch.setattr(machine, "PACKAGES", ("pydantic", "no-such-package"))
    check = machine.check_packages()
    assert check.level == "fail" and check.found == "not installed: no-such-package"


def test_an_old_python_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.sys, "version_info", (3, 9, 6))
    check = machine.check_python()
    assert check.level == "fail" and "Python 3.11" in check.remedy


def test_a_folder_that_can_be_written(tmp_path: Path) -> None:
    checks = places.check_runs(tmp_path / "runs")
    assert [c.level for c in checks] == ["ok"] * 3
    assert [c.name for c in checks] == ["runs folder", "clock", "file locks"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (check,) = places.check_runs(tmp_path / "file" / "runs")
    assert check.level == "fail" and "--runs" in check.remedy


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparrow_lab.sweep import guards

    monkeypatch.setattr(
        guards.shutil, "disk_usage", lambda path: guards.shutil._ntuple_diskusage(1, 1, 0)
    )
    (check,) = places.check_runs(tmp_path)
    assert check.level == "fail" and "only 0 MB free" in check.found


def test_a_clock_that_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert places.check_clock(tmp_path).level == "ok"
    real = time.time
    for shift in (-40, 40):
        monkeypatch.setattr(places.time, "time", lambda shift=shift: real() + shift)
        check = places.check_clock(tmp_path)
        assert check.level == "warn" and "differ by 40 s" in check.found
    assert places.judge_skew(900, "n1").level == "fail"
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, flags: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(places.fcntl, "flock", refuse)
    check = places.check_runs(tmp_path)[-1]
    assert check.level == "warn" and "ENOLCK" in check.found


def test_a_file_system_without_exclusive_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "create_json", lambda path, obj: True)
    levels = {c.name: c.level for c in places.check_runs(tmp_path)}
    assert levels["exclusive files"] == "fail"


def test_a_database_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparrow_lab.tracking import store

    assert places.check_database(tmp_path) == Check("mlflow", "ok", str(tmp_path / "mlflow.db"))
    monkeypatch.setattr(store, "network_kind", lambda path, known=None: "nfs4")
    moved = places.check_database(tmp_path)
    assert moved.level == "ok" and "network file system (nfs4)" in moved.found
    own = places.check_database(tmp_path, f"sqlite:///{tmp_path}/x.db")
    assert own.level == "warn" and "local disk" in own.remedy
    assert places.check_database(tmp_path, "http://host:5000").found.startswith("the server")
    assert places.check_database(tmp_path, "file:///x").level == "fail"


def test_an_old_file_store_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    assert places.check_old_store(runs).level == "ok"
    (tmp_path / "mlruns").mkdir()
    assert places.check_old_store(runs).level == "ok"
    (tmp_path / "mlruns" / "0").mkdir()
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: Default\n")
    check = places.check_old_store(runs)
    assert check.level == "warn" and "migrate-filestore" in check.remedy
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mlruns"]


def test_a_cache_on_a_network_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert places.check_caches().level in ("ok", "warn")
    monkeypatch.setattr(places, "network_kind", lambda path: "nfs4")
    check = places.check_caches()
    assert check.level == "warn" and "TRITON_CACHE_DIR" in check.remedy
