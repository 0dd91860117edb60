"""Training and measuring where the model is: no tensor is left behind, no update is missed.

A second device is pretended (`elsewhere`), so that a forgotten one shows without a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.paged import engine as paged
from sparrow_lab.rollout.paged.device_decoder import DeviceDecoder
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.stages import calibrate as calibrating
from sparrow_lab.stages.calibrate import measure_curve
from sparrow_lab.train import trainer as training
from sparrow_lab.train.attention import add_rows
from sparrow_lab.train.checkpoint import load_checkpoint, save_checkpoint
from sparrow_lab.train.trainer import Trainer
from tests.rollout.small_models import own_copy, small_model
from tests.train.elsewhere import ELSEWHERE, Elsewhere, WrongDevice, a_second_device, back, moved
from tests.train.plain import assert_close
from tests.train.test_trainer import SPARSE, make_config
from tests.train.toy_task import ToyTask

ENGINES = ["rows", "pages", "gpu layers"]
"""What rolls out on a CPU; pages, which a GPU gets; and pages with the layers of a GPU."""

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

CASES: list[tuple[str, dict[str, Any]]] = [
    ("rows", {}),
    ("pages", {"train": {"minibatches": 2, "loss_average": "sequence"}}),
    ("gpu layers", {"train": {"kl_coef": 0.3, "loss_average": "fixed_length", "dual_clip": 1.5}}),
    ("gpu layers", {"rollout": {"top_p": 0.8, "max_batch": 3}}),
]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the trainer one of `ENGINES`, wherever the model is."""

    def choose(engine: str) -> None:
        def make(model: Any, schedule: Schedule, max_batch: int, **_: Any) -> Any:
            return (RolloutEngine if engine == "rows" else PagedEngine)(model, schedule, max_batch)

        monkeypatch.setattr(training, "make_engine", make)
        monkeypatch.setattr(calibrating, "make_engine", make)
        if engine == "gpu layers":
            monkeypatch.setattr(paged, "Decoder", DeviceDecoder)

    return choose


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The pretended device, whose queue of work is always empty."""

    class Stream:
        def synchronize(self) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream())
    with a_second_device():
        yield


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: back(p).detach().clone() for name, p in trainer.model.named_parameters()}


# ------------------------------------------------------------------ the pretended device
@pytest.mark.usefixtures("elsewhere")
def test_the_pretended_device_is_strict() -> None:
    there, here = torch.arange(3.0, device=ELSEWHERE), torch.ones(3)
    assert isinstance(there, Elsewhere) and isinstance(here.to(ELSEWHERE), Elsewhere)
    assert type(there.cpu()) is Tensor and float((there * 2).sum()) == 6.0
    for mistake in (
        lambda: there + here,
        lambda: here[there.long()],
        lambda: there.numpy(),
        lambda: torch.where(there > 1, there, here),
        lambda: torch.cat([there, here]),
    ):
        with pytest.raises((WrongDevice, RuntimeError)):
            mistake()
    assert (there + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert there[torch.tensor([2])].tolist() == [2]
    there[1:] = 5
    assert there.tolist() == [0, 5, 5]


# ------------------------------------------------------------------ a step
@pytest.mark.parametrize(("engine", "settings"), CASES, ids=str)
def test_a_step_keeps_to_the_models_device(
    use: Any, elsewhere: None, engine: str, settings: dict[str, Any]
) -> None:
    """Two steps and an evaluation, in float64 what they are on the CPU."""
    use(engine)
    config = make_config(**settings)
    told = []
    for there in (False, True):
        model: Any = own_copy(small_model("qwen3", 2))
        trainer = Trainer(moved(model) if there else model, ToyTask(), SPARSE, config)
        parts = [trainer.step(0).metrics, trainer.step(1).metrics]
        evaluation, batch = trainer.evaluate(5, schedule=SPARSE)
        numbers = {
            f"{i} {k}": v
            for i, part in enumerate([*parts, evaluation])
            for k, v in part.items()
            if not k.startswith("time/") and k != "rollout/tokens_per_s"
        }
        told.append((numbers, batch.answers(), weights(trainer)))
    (here, answers, mine), (elsewhere_, others, its) = told
    assert answers == others
    assert elsewhere_ == pytest.approx(here, rel=1e-6, abs=1e-9, nan_ok=True)
    assert_close(its, mine, 1e-6)


@pytest.mark.parametrize("estimator", ["exact", "top_k"])
def test_a_curve_keeps_to_the_models_device(use: Any, elsewhere: None, estimator: str) -> None:
    """Own trajectories and common ones."""
    use("gpu layers")
    config = make_config(
        sparsity={"page_size": 4, "dense_layers": 0},
        calibrate={"prompts": 3, "min_prompts": 1, "ladder": 2, "bootstrap": 3, "samples": 1}
        | {"estimator": estimator, "top_k": 3, "bin_width": 8},
    )
    here, there = (
        measure_curve(move(own_copy(small_model("qwen3", 2))), ToyTask(), config, lambda *_: None)
        for move in (lambda model: model, moved)
    )
    for name in ("pooled", "rows"):
        for a, b in zip(here[0][name], there[0][name], strict=True):
            assert a.pop("trajectory") == b.pop("trajectory")
            assert b == pytest.approx(a, rel=1e-6)
    assert len(here[0]["pooled"]) == 4
    assert there[0]["ceiling"] == pytest.approx(here[0]["ceiling"])


# ------------------------------------------------------------------ updates
@pytest.mark.parametrize(
    ("device", "engine"),
    [
        *(("cpu", engine) for engine in ENGINES),
        pytest.param("cuda", "pages", marks=pytest.mark.gpu),
    ],
)
def test_a_rollout_has_the_weights_of_the_last_update(
    use: Any, tmp_path: Path, device: str, engine: str
) -> None:
    """After a step, and after a checkpoint was loaded, as a new engine has them."""
    use(engine)
    config = make_config(train={"lr": 0.02})
    model: Any = own_copy(small_model("qwen3", 2, dtype=torch.float32)).to(device)  # type: ignore[arg-type]
    trainer = Trainer(model, ToyTask(), SPARSE, config)

    def told(by: Any) -> Tensor:
        options: dict[str, Any] = {"max_new_tokens": 7, "forced": [[5, 9, 2, 1, 8, 4, 6]]}
        logp: Tensor = by.generate([[4, 8, 15, 16]], 1, config.rollout, **options).raw_logp_NT
        return logp

    def anew() -> Tensor:
        kind = RolloutEngine if engine == "rows" else PagedEngine
        return told(kind(trainer.model, SPARSE, config.rollout.max_batch))

    before = told(trainer.engine)
    path = save_checkpoint(tmp_path, 0, trainer.model, trainer.optimizer, {})
    assert trainer.step(0).metrics["policy/grad_norm"] > 0
    after = told(trainer.engine)
    assert torch.equal(after, anew()) and not torch.equal(after, before)
    load_checkpoint(path, trainer.model, trainer.optimizer, {})
    trainer.engine.refresh()
    assert torch.equal(told(trainer.engine), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_going_on_from_a_checkpoint_is_going_on(
    tmp_path: Path, device: str, dtype: torch.dtype
) -> None:
    """Two steps in a row, and with a checkpoint and another trainer between them."""
    config = make_config(train={"lr": 0.01, "weight_decay": 0.1})

    def fresh() -> Trainer:
        model: Any = own_copy(small_model("qwen3", 2, dtype=dtype))
        return Trainer(model.to(device), ToyTask(), SPARSE, config)

    whole = fresh()
    whole.step(0)
    path = save_checkpoint(tmp_path, 1, whole.model, whole.optimizer, {})
    last = whole.step(1).histogram
    other = fresh()
    load_checkpoint(path, other.model, other.optimizer, {})
    other.engine.refresh()
    again = other.step(1).histogram
    assert again.counts.tolist() == last.counts.tolist()
    mine, its = weights(whole), weights(other)
    assert all(torch.equal(mine[k], its[k]) for k in mine)
    assert {p.device.type for p in other.model.parameters()} == {device}


@pytest.mark.parametrize("device", DEVICES)
def test_rows_are_added_in_one_order(device: str) -> None:
    noise = torch.Generator().manual_seed(0)
    rows = torch.randn(5_000, 8, generator=noise).to(device)
    index = torch.randint(7, (5_000,), generator=noise).to(device)
    sums = [add_rows(rows.new_zeros(7, 8), index, rows) for _ in range(5)]
    assert all(torch.equal(sums[0], x) for x in sums[1:])
    exact = rows.new_zeros(7, 8, dtype=torch.float64).index_add_(0, index, rows.double())
    torch.testing.assert_close(sums[0].double(), exact, atol=1e-3, rtol=0)
