"""The paged engine on a GPU: it gives what the CPU gives, and follows every change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.batch import RolloutBatch
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.sparsity.schedule import Schedule
from tests.rollout.paged.test_lora import EVERY, adapted
from tests.rollout.small_models import own_copy, small_model
from tests.rollout.test_engine import GREEDY, PLAIN, make_prompts

pytestmark = pytest.mark.gpu

DENSE = Schedule.dense(4)
SPARSE = Schedule.fixed(12, 4, dense_layers=1)
WIDER = Schedule(4, (0, 36), (16, 20), dense_layers=1)
PROMPTS = make_prompts([30, 9, 4, 21, 17])
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "seed": 2}


def on_gpu(dtype: torch.dtype = torch.float32) -> Any:
    model: Any = own_copy(small_model("qwen3", 2, dtype=dtype))
    return model.cuda()


def engine_of(model: Any, schedule: Schedule, pages: int = 400, **options: Any) -> PagedEngine:
    size = model.dtype.itemsize
    return PagedEngine(model, schedule, 16, memory=pages * 2 * 2 * 8 * size * 10, **options)


def gap(a: RolloutBatch, b: RolloutBatch) -> float:
    return float((a.raw_logp_NT.cpu().double() - b.raw_logp_NT.cpu().double()).abs().max())


@pytest.mark.parametrize("schedule", [DENSE, SPARSE, WIDER], ids=["dense", "sparse", "wider"])
@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_the_gpu_says_what_the_cpu_says(schedule: Schedule, graphs: bool) -> None:
    """Fed the CPU's tokens, log-probabilities agree; greedily the tokens are the same."""
    cpu = PagedEngine(small_model("qwen3", 2, dtype=torch.float32), schedule)
    told = cpu.generate(PROMPTS, 2, PLAIN, **OPTIONS)
    engine = engine_of(on_gpu(), schedule, graphs=graphs)
    fed = engine.generate(PROMPTS, 2, PLAIN, forced=told.answers(), **OPTIONS)
    assert gap(fed, told) < 1e-3
    assert engine.pages_held == 0
    assert torch.equal(fed.attended_NT.cpu(), told.attended_NT)
    greedy = cpu.generate(PROMPTS, 1, GREEDY, **OPTIONS)
    assert engine.generate(PROMPTS, 1, GREEDY, **OPTIONS).answers() == greedy.answers()
    if graphs:
        assert engine.runner.graphs is not None and len(engine.runner.graphs) > 0


def test_graphs_change_nothing_to_the_bit() -> None:
    model = on_gpu(torch.bfloat16)
    batches = [
        engine_of(model, SPARSE, graphs=graphs).generate(PROMPTS[:4], 2, PLAIN, **OPTIONS)
        for graphs in (False, True)
    ]
    # eight sequences are decoded without padding, so that products have the same shape
    for name in ("tokens_NT", "logp_NT", "hidden_NTM"):
        assert torch.equal(getattr(batches[0], name), getattr(batches[1], name)), name


def test_every_page_is_dense_to_the_bit() -> None:
    model = on_gpu(torch.bfloat16)
    whole = Schedule.fixed(64, 4, dense_layers=1)
    dense, sparse = (
        engine_of(model, schedule).generate(PROMPTS, 2, PLAIN, **OPTIONS)
        for schedule in (DENSE, whole)
    )
    for name in ("tokens_NT", "logp_NT", "raw_logp_NT", "hidden_NTM"):
        assert torch.equal(getattr(dense, name), getattr(sparse, name)), name


def test_another_schedule_and_an_update_need_no_new_capture() -> None:
    model = on_gpu()
    engine = engine_of(model, SPARSE)
    engine.generate(PROMPTS, 2, PLAIN, **OPTIONS)
    assert engine.runner.graphs is not None
    graphs, count = engine.runner.graphs, len(engine.runner.graphs)
    engine.set_schedule(WIDER)
    wider = engine.generate(PROMPTS, 2, PLAIN, **OPTIONS)
    fresh = engine_of(model, WIDER).generate(PROMPTS, 2, PLAIN, **OPTIONS)
    assert torch.equal(wider.raw_logp_NT, fresh.raw_logp_NT)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.8)
    engine.refresh()
    after = engine.generate(PROMPTS, 2, PLAIN, **OPTIONS)
    fresh = engine_of(model, WIDER).generate(PROMPTS, 2, PLAIN, **OPTIONS)
    assert torch.equal(after.raw_logp_NT, fresh.raw_logp_NT)
    assert not torch.equal(after.raw_logp_NT, wider.raw_logp_NT)
    assert engine.runner.graphs is graphs and len(graphs) == count


def test_adapters_go_with_the_prompts_that_ask_for_them() -> None:
    here, there = adapted(EVERY).float(), adapted(EVERY).float().cuda()
    cpu, engine = PagedEngine(here, SPARSE), engine_of(there, SPARSE)
    more: dict[str, Any] = {**OPTIONS, "adapters": [True, False, True, True, False]}
    told = cpu.generate(PROMPTS, 2, PLAIN, **more)
    fed = engine.generate(PROMPTS, 2, PLAIN, forced=told.answers(), **more)
    assert gap(fed, told) < 1e-3
    without = engine.generate(PROMPTS, 2, PLAIN, forced=told.answers(), **OPTIONS, adapters=False)
    assert gap(without, told) > 1e-2
    graphs = engine.runner.graphs
    assert graphs is not None
    count = len(graphs)
    with torch.no_grad():
        for model in (here, there):
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.mul_(-2)
    cpu.refresh()
    engine.refresh()
    after = cpu.generate(PROMPTS, 2, PLAIN, forced=told.answers(), **more)
    fed = engine.generate(PROMPTS, 2, PLAIN, forced=told.answers(), **more)
    assert gap(fed, after) < 1e-3 and gap(after, told) > 1e-2
    assert engine.runner.graphs is graphs and len(graphs) == count


def test_preempted_sequences_come_back_as_they_were() -> None:
    model = on_gpu()
    whole = engine_of(model, SPARSE).generate(PROMPTS, 3, PLAIN, **OPTIONS)
    tight = engine_of(model, SPARSE, pages=30)
    fed = tight.generate(PROMPTS, 3, PLAIN, forced=whole.answers(), **OPTIONS)
    assert tight.preemptions > 0 and tight.pages_held == 0
    assert gap(fed, whole) < 1e-3


@pytest.mark.parametrize(
    "rollout", [PLAIN, RolloutConfig(top_k=5, temperature=0.7), RolloutConfig(top_p=0.6)], ids=str
)
def test_float64_draws_the_cpus_tokens(rollout: RolloutConfig) -> None:
    """Keyed noise and truncation on the device; its sines differ by float32's last bits."""
    cpu = PagedEngine(small_model("qwen3", 2), SPARSE).generate(PROMPTS, 2, rollout, **OPTIONS)
    gpu = engine_of(on_gpu(torch.float64), SPARSE).generate(PROMPTS, 2, rollout, **OPTIONS)
    assert gpu.answers() == cpu.answers()
    assert gap(gpu, cpu) < 1e-5


def test_long_prompts_in_chunks() -> None:
    model, prompts = on_gpu(), make_prompts([150, 9])
    whole = engine_of(model, SPARSE).generate(prompts, 1, PLAIN, max_new_tokens=9)
    chunked = engine_of(model, SPARSE, chunk=40)
    fed = chunked.generate(prompts, 1, PLAIN, max_new_tokens=9, forced=whole.answers())
    assert gap(fed, whole) < 1e-3


def test_hidden_states_come_to_host_memory() -> None:
    batch = engine_of(on_gpu(torch.bfloat16), SPARSE).generate(PROMPTS, 1, PLAIN, **OPTIONS)
    assert batch.hidden_NTM is not None
    assert batch.hidden_NTM.device.type == "cpu" and batch.hidden_NTM.is_pinned()
    assert batch.tokens_NT.is_cuda and batch.valid_NT.is_cuda and batch.counted_NT.is_cuda
    assert np.isfinite(batch.hidden_NTM.float().numpy()).all()
