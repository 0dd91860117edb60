"""All four stages where `model.device` says: a GPU gives what the CPU gives, and resumes exactly.

Without a GPU the same tests run on the CPU with what a GPU runs: pages, and the layers of a GPU on
the kernels' definitions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models.load import load_model
from sparrow_lab.rollout.paged import engine as paged
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.runs.events import read_events
from sparrow_lab.runs.layout import SweepFolder
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages import StageContext
from sparrow_lab.stages import calibrate as calibrate_stage
from sparrow_lab.stages import train as train_stage
from sparrow_lab.sweep.tally import may_try_again
from sparrow_lab.train import trainer as training
from tests.stages import core
from tests.stages.core import make_config, make_sweep, numbers_of, result_of, run

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

ONE_UPDATE = {"steps": 1, "prompts": 8, "samples": 4}
"""Two roundings of one update are compared; later ones would drift from each other."""


def made(path: Path, *ids: str, device: str = "cpu", dtype: str = "float32", **rest: Any) -> Any:
    """A sweep with these points run."""
    sweep = make_sweep(path, make_config(model={"device": device, "dtype": dtype}, **rest))
    run(sweep, *ids)
    return sweep


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """On the CPU, rolls out as a GPU does."""

    def like_a_gpu(device: str) -> None:
        if device != "cpu":
            return

        def make(model: Any, schedule: Schedule, max_batch: int, **_: Any) -> PagedEngine:
            return PagedEngine(model, schedule, max_batch)

        monkeypatch.setattr(paged, "Decoder", DeviceDecoder)
        for module in (training, calibrate_stage):
            monkeypatch.setattr(module, "make_engine", make)

    return like_a_gpu


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """All stages as the CPU runs them."""
    path = tmp_path_factory.mktemp("sweep") / "cpu"
    sweep: SweepFolder = made(path, "ca00", "5c00", "7a00", "e000", train=ONE_UPDATE)
    return sweep


def numbers(sweep: SweepFolder, point: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((sweep.point(point).path / name).read_text())
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_every_stage_says_what_the_cpu_says(
    tmp_path: Path, on_cpu: SweepFolder, place: Callable[[str], None], device: str
) -> None:
    """The noise is keyed, so texts are the same but where two tokens are as good as equal."""
    place(device)
    sweep = made(tmp_path / "s", "ca00", "5c00", "7a00", "e000", device=device, train=ONE_UPDATE)
    curve, told = (numbers(s, "ca00", "curve.json") for s in (sweep, on_cpu))
    assert curve["ceiling"]["p05"] > 0.999
    assert len(curve["pooled"]) == len(told["pooled"]) == 6
    for a, b in zip(curve["pooled"], told["pooled"], strict=True):
        assert (a["trajectory"], a["budget"]) == (b["trajectory"], b["budget"])
        assert a["tokens"] == pytest.approx(b["tokens"], rel=0.05)
        assert a["p05"] == pytest.approx(b["p05"], abs=0.03)
        assert a["mean"] == pytest.approx(b["mean"], abs=0.01)
        assert a["reward"] == pytest.approx(b["reward"], abs=0.13)  # one of eight prompts
    measured, its = (numbers(s, "5c00", "schedule.json")["measured"] for s in (sweep, on_cpu))
    assert measured["mean"] == pytest.approx(its["mean"], abs=0.01)
    first, other = (read_events(s.point("7a00")).rows[0][3] for s in (sweep, on_cpu))
    assert first.keys() == other.keys()
    for name in ("acceptance/mean", "policy/entropy", "rollout/kv_tokens_mean"):
        assert first[name] == pytest.approx(other[name], rel=0.02), name
    assert first["policy/grad_norm"] == pytest.approx(other["policy/grad_norm"], rel=0.1)
    assert first["policy/grad_norm"] > 0
    evaluated, told = (result_of(s.point("e000"))["metrics"] for s in (sweep, on_cpu))
    assert evaluated.keys() == told.keys()
    assert evaluated["acceptance/mean"] == pytest.approx(told["acceptance/mean"], abs=0.02)
    assert evaluated["evaluate/reward"] == pytest.approx(told["evaluate/reward"], abs=0.2)


@pytest.mark.parametrize("device", DEVICES)
def test_an_update_is_the_cpus(
    tmp_path: Path, on_cpu: SweepFolder, place: Callable[[str], None], device: str
) -> None:
    """Of the way that the weights went, hardly anything differs."""
    place(device)
    sweep = made(tmp_path / "s", "5c00", "7a00", device=device, train=ONE_UPDATE)
    final = Path("final") / "model.safetensors"
    mine, its = (load_file(s.point("7a00").path / final) for s in (sweep, on_cpu))
    start = dict(load_model(ModelConfig(name="tiny-s"))[0].named_parameters())
    way = sum(float((its[k] - v).abs().sum()) for k, v in start.items())
    apart = sum(float((its[k] - mine[k]).abs().sum()) for k in start)
    assert way > 0 and apart < 0.05 * way


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_run_that_is_cut_ends_in_the_same_bits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[str], None],
    device: str,
    dtype: str,
) -> None:
    """Asked to stop after step 1, then killed after step 3, one step beyond a checkpoint."""
    place(device)
    whole = made(tmp_path / "whole", "5c00", "7a00", device=device, dtype=dtype)
    sweep = made(tmp_path / "cut", "5c00", device=device, dtype=dtype)

    def stage(ctx: StageContext) -> dict[str, Any]:
        tell, attempt = ctx.progress, len(ctx.previous)

        def progress(done: int, total: int, note: str = "") -> None:
            tell(done, total, note)
            if (attempt, done) == (0, 1):
                ctx.stop.set("SIGTERM")
            if (attempt, done) == (1, 3):
                raise MemoryError

        ctx.progress = progress  # type: ignore[method-assign]
        return train_stage.run(ctx)

    monkeypatch.setattr(core, "cut_on_device", stage, raising=False)
    name = "tests.stages.core:cut_on_device"
    run(sweep, "7a00", train=name)
    with pytest.raises(MemoryError):
        run(sweep, "7a00", train=name)
    run(sweep, "7a00", train=name)
    point, other = sweep.point("7a00"), whole.point("7a00")
    assert [a.number for a in point.attempts()] == [1, 2, 3]
    log = point.attempts()[-1].log_path.read_text()
    assert "resumed at step 2" in log and f"{dtype} on {device}" in log
    assert numbers_of(point) == numbers_of(other)
    final = Path("final") / "model.safetensors"
    a, b = (load_file(p.path / final) for p in (point, other))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_gpu_that_is_not_there_is_a_users_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line in the log, and no second try."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sweep = make_sweep(tmp_path / "s", make_config(model={"device": "cuda"}))
    for point in ("ca00", "5c00"):
        with pytest.raises(UserError, match=r"model\.device: found 'cuda', but"):
            run(sweep, point)
        attempt = sweep.point(point).attempts()[0]
        failure = attempt.read_failure() or {}
        assert (failure["type"], failure["traceback"]) == ("UserError", "")
        assert "allowed here: cpu" in attempt.log_path.read_text()
        assert not may_try_again(sweep, point, 0, 0, retries=5)
