"""The engine of a model: rows on a CPU, pages where there are adapters or a GPU."""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.rollout.pick import BESIDE_TRAINING, make_engine
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import own_copy, small_model

SPARSE = Schedule.fixed(12, 4, dense_layers=1)


def test_rows_on_a_cpu_and_pages_for_adapters() -> None:
    engine = make_engine(small_model(), SPARSE, 7)
    assert isinstance(engine, RolloutEngine) and engine.max_batch == 7
    adapted = get_peft_model(own_copy(small_model()), LoraConfig(target_modules=["q_proj"]))
    engine = make_engine(adapted, SPARSE, 7)  # type: ignore[arg-type]
    assert isinstance(engine, PagedEngine) and engine.max_batch == 7


@pytest.mark.gpu
def test_pages_on_a_gpu() -> None:
    """Beside training they leave room for it."""
    model = own_copy(small_model(dtype=torch.float32)).cuda()  # type: ignore[arg-type]
    for trains, share in ((False, 0.85), (True, BESIDE_TRAINING)):
        engine = make_engine(model, SPARSE, trains=trains)
        assert isinstance(engine, PagedEngine) and engine.runner.memory == share
