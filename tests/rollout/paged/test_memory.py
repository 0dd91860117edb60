"""Memory for the KV cache, as people write it."""

from __future__ import annotations

import pytest
import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.errors import UserError
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.rollout.paged.memory import pages_for, parse_memory
from sparrow_lab.rollout.paged.store import Layout, PageStore
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.small_models import CONTEXT, small_model

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20GB", 20 * 10**9),
        ("512 MiB", 512 * 2**20),
        ("1.5kb", 1500),
        ("1000000", 1_000_000),
        ("0.85", 0.85),
        ("1", 1),
        ("0.5gb", 5 * 10**8),
    ],
)
def test_bytes_and_fractions(text: str, expected: int | float) -> None:
    found = parse_memory(text)
    assert found == expected and type(found) is type(expected)


@pytest.mark.parametrize("text", ["", "GB", "-1", "lots", "20XB", "0.5.1"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="neither bytes"):
        parse_memory(text)


@pytest.mark.parametrize("landmark", [None, "mean", "minmax"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_costs_what_its_tensors_hold(landmark: str | None, dtype: torch.dtype) -> None:
    layout = Layout(5, 2, 8, 4, landmark, 2, dtype)  # type: ignore[arg-type]
    store = PageStore(layout, 7, CPU)
    held = store.kv_L2NKSD.nbytes + (0 if store.marks_LNKRD is None else store.marks_LNKRD.nbytes)
    assert held == 7 * layout.page_bytes
    assert pages_for(held, layout, CPU) == 7
    assert pages_for(held - 1, layout, CPU) == 6


def test_no_more_is_taken_than_a_rollout_can_use() -> None:
    """A fraction of a GPU would else be filled by the cache of a tiny model."""
    schedule = Schedule.dense(4)
    few, many = (
        PagedEngine(small_model("qwen3", 2), schedule, 3, memory=memory)
        for memory in (2**30, 2**15)
    )
    stores = []
    for engine in (few, many):
        batch = engine.generate([[1, 2, 3]], 2, RolloutConfig(), max_new_tokens=5)
        assert batch.generated_N.tolist() == [5, 5]
        assert engine.runner.store is not None
        stores.append(engine.runner.store)
    assert stores[0].pages == 3 * (CONTEXT // 4 + 2)
    assert stores[1].pages == 2**15 // stores[1].layout.page_bytes < stores[0].pages


def test_too_little_and_a_fraction_without_a_gpu_are_refused() -> None:
    layout = Layout(5, 2, 8, 4, None, 2, torch.float32)
    with pytest.raises(UserError, match=r"100 bytes hold no page of 2,560 bytes"):
        pages_for(100, layout, CPU)
    with pytest.raises(UserError, match="needs a GPU"):
        pages_for(0.5, layout, CPU)
