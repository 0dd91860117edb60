"""Points that ask for a GPU: refused at once where there is certainly none, one at a time here."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sparrow_lab.config.site import load_site
from sparrow_lab.errors import UserError
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.runs.plan import Plan, PlannedPoint
from sparrow_lab.sweep import gpu, run
from sparrow_lab.sweep.gpu import check_gpus, missing_here, torch_build, wants_gpu
from sparrow_lab.sweep.jobs import Job
from sparrow_lab.sweep.options import Options
from sparrow_lab.sweep.workers import Workers
from tests.sweep import fakes


def on_gpu(point: PlannedPoint) -> PlannedPoint:
    return replace(point, config={**point.config, "model": {"device": "cuda"}})


CPU = fakes.make_point("7a00", "train")
GPU = on_gpu(fakes.make_point("7a01", "train"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A machine with a CUDA build of torch and no driver."""
    monkeypatch.setattr(gpu, "torch_build", lambda: {"cuda": "12.8"})
    monkeypatch.setattr(gpu, "driver_version", lambda: None)
    monkeypatch.setattr(gpu, "DEVICE_FILES", (str(tmp_path / "nvidiactl"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


# ------------------------------------------------------------------ what is known without torch
@pytest.mark.parametrize(
    ("line", "built"),
    [
        ("cuda: Optional[str] = '12.8'", {"cuda": "12.8"}),
        ("cuda = '13.0'", {"cuda": "13.0"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4.4'", {"hip": "6.4.4"}),
        ("cuda: Optional[str] = None\nhip: Optional[str] = None", {}),
    ],
)
def test_what_torch_was_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, built: dict[str, str]
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('torch was imported')\n")
    (package / "version.py").write_text(f"debug = False\n{line}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    assert torch_build() == built


def test_a_machine_without_a_driver(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert missing_here() == "this machine has no NVIDIA driver"
    (tmp_path / "nvidiactl").touch()
    assert missing_here() == ""
    (tmp_path / "nvidiactl").unlink()
    machine.setattr(gpu, "driver_version", lambda: "570.1")
    assert missing_here() == ""


@pytest.mark.parametrize("shown", ["", "-1", " "])
def test_a_gpu_that_is_hidden(machine: pytest.MonkeyPatch, shown: str) -> None:
    machine.setattr(gpu, "driver_version", lambda: "570.1")
    machine.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert missing_here() == "CUDA_VISIBLE_DEVICES hides every GPU"
    machine.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert missing_here() == ""


def test_a_cpu_build_of_torch(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(gpu, "driver_version", lambda: "570.1")
    machine.setattr(gpu, "torch_build", dict)
    assert missing_here() == "the torch that is installed was built without CUDA"
    machine.setattr(gpu, "torch_build", lambda: {"hip": "6.4"})
    assert missing_here() == ""


# ------------------------------------------------------------------ refused, or not
@pytest.mark.usefixtures("machine")
def test_points_are_refused_where_there_is_no_gpu() -> None:
    assert wants_gpu(GPU) and not wants_gpu(CPU)
    check_gpus([CPU, CPU], None)
    with pytest.raises(UserError, match=r"1 point asks for a GPU \(found cuda\), but .*driver"):
        check_gpus([CPU, GPU], None)
    with pytest.raises(UserError, match="2 points ask") as refused:
        check_gpus([GPU, GPU], None)
    assert refused.value.where == "model.device"


@pytest.mark.usefixtures("machine")
def test_a_cluster_is_asked_for_its_gpus_only(tmp_path: Path) -> None:
    """A login node has none itself."""
    file = tmp_path / "site.yaml"
    file.write_text("partition: gpu\ngpus: 1\n")
    check_gpus([GPU], load_site(file))
    file.write_text("partition: cpu\ngpus: 0\n")
    check_gpus([CPU], load_site(file))
    with pytest.raises(UserError, match="a job of this site has no GPU") as refused:
        check_gpus([GPU], load_site(file))
    assert refused.value.where == f"{file}:2:7"


@pytest.mark.usefixtures("machine")
def test_a_sweep_that_cannot_run_leaves_nothing(tmp_path: Path) -> None:
    plan = Plan("s", {}, (CPU, GPU))
    sweep = SweepFolder(tmp_path / "s")
    out = Console(file=io.StringIO())
    with pytest.raises(UserError, match=r"model\.device: 1 point asks"):
        run.run_sweep(sweep, plan, b"", Options(), out, stages=fakes.STAGES)
    assert not sweep.path.exists()


def test_a_preview_says_that_it_would_be_refused(
    machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is no error: whoever has a cluster looks at a sweep on a laptop first."""

    def preview() -> str:
        out = Console(file=io.StringIO(), record=True, width=200)
        run.dry_run(out, SweepFolder(tmp_path / "s"), plan, [p.id for p in plan.points])
        return out.export_text()

    plan = Plan("s", {}, (CPU, GPU))
    said = "it would be refused here: model.device: 1 point asks for a GPU (found cuda), but this"
    assert f"{said} machine has no NVIDIA driver; allowed here: cpu, or a cluster" in preview()
    machine.setattr(gpu, "driver_version", lambda: "570.1")
    assert "2 points would run; nothing was started" in preview()
    assert "refused" not in preview()


@pytest.mark.usefixtures("machine")
def test_what_is_done_needs_no_gpu(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path / "s")
    plan = Plan("s", {}, (CPU, GPU))
    sweep.write_plan(plan)
    assert run._asking(sweep, plan) == [GPU]
    assert run._asking(sweep, plan, first=1) == []
    folder = sweep.point(GPU.id)
    folder.write_point(GPU)
    folder.write_result({"stage": "train", "metrics": {}})
    assert run._asking(sweep, plan) == []


# ------------------------------------------------------------------ workers
def test_one_worker_at_a_time_has_a_gpu(tmp_path: Path) -> None:
    sweep = SweepFolder(tmp_path / "s")
    at_work = [Job(sweep, "a", ["x"], threads=0, gpu=True)]
    assert not Workers(Options(), at_work).room(GPU)
    assert Workers(Options(), [Job(sweep, "a", ["x"], threads=0)]).room(GPU)
    assert Workers(Options(), at_work).room(CPU)
    assert Workers(Options(parallel=2), at_work).room(GPU)
