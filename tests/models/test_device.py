"""A model's device: where the config says, or one clear refusal before any weight is read."""

from __future__ import annotations

import pytest
import torch

from sparrow_lab.config.schema import ModelConfig
from sparrow_lab.errors import UserError
from sparrow_lab.models import load
from sparrow_lab.models.device import check_device, where_is
from sparrow_lab.models.load import load_model

ON_GPU = ModelConfig(name="tiny-s", device="cuda")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine where torch has no GPU to use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


def test_a_gpu_that_is_not_there_is_refused_before_weights_are_read(
    no_gpu: pytest.MonkeyPatch,
) -> None:
    no_gpu.setattr(load, "_load", lambda config: pytest.fail("weights were read"))
    with pytest.raises(UserError, match=r"found 'cuda', but .*; allowed here: cpu") as refused:
        load_model(ON_GPU)
    assert refused.value.where == "model.device"
    with pytest.raises(UserError, match="found 'cuda:1'") as refused:
        load_model(ModelConfig(name="tiny-s"), "cuda:1")
    assert refused.value.where == "device"


@pytest.mark.parametrize(
    ("cuda", "shown", "reason"),
    [
        (None, None, "built without CUDA"),
        ("12.8", None, "torch sees no GPU on "),
        ("12.8", "", "with CUDA_VISIBLE_DEVICES=;"),
        ("12.8", "7", "with CUDA_VISIBLE_DEVICES=7;"),
    ],
)
def test_the_refusal_says_what_is_missing(
    no_gpu: pytest.MonkeyPatch, cuda: str | None, shown: str | None, reason: str
) -> None:
    no_gpu.setattr(torch.version, "cuda", cuda)
    if shown is not None:
        no_gpu.setenv("CUDA_VISIBLE_DEVICES", shown)
    with pytest.raises(UserError, match=reason):
        check_device("cuda", "model.device")


def test_a_gpu_that_is_there_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(True) or True)
    check_device("cuda", "model.device")
    check_device("cuda:3", "device")
    check_device("cpu", "device")
    assert asked == [True, True]  # torch was asked, and its yes was enough


def test_the_cpu_is_the_default() -> None:
    model, _ = load_model(ModelConfig(name="tiny-s"))
    assert where_is(model) == "cpu"
    assert {p.device.type for p in model.parameters()} == {"cpu"}


@pytest.mark.gpu
def test_the_config_puts_it_on_a_gpu() -> None:
    model, _ = load_model(ON_GPU)
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    assert where_is(model).startswith("cuda:0 (")
