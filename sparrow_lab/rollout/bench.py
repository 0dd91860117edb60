"""Rollout of a tiny model against transformers' `generate`, in one process and one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparrow_lab.config.schema import ModelConfig, ReservedConfig, RolloutConfig, TaskConfig
from sparrow_lab.models.load import load_model
from sparrow_lab.models.tiny import TINY
from sparrow_lab.rollout.engine import RolloutEngine
from sparrow_lab.sparsity.schedule import Schedule
from sparrow_lab.tasks import make_task


@dataclass(frozen=True)
class BenchRow:
    """One way to generate: median seconds over the repeats, and tokens a second."""

    what: str
    seconds: float
    tokens_per_s: float
    ms_per_step: float


def bench_tiny(
    name: str = "tiny-s",
    sequences: int = 64,
    new_tokens: int = 180,
    page_size: int = 8,
    budget: int = 56,
    repeats: int = 5,
) -> list[BenchRow]:
    """Time transformers' generate, our dense and our sparse rollout, taking turns.

    All sample at temperature 1 from the same prompts to a fixed length, without stop tokens. Every
    sequence has a prompt of its own, so sharing prompts gives us nothing.
    """
    import torch
    from transformers import GenerationConfig

    model, _ = load_model(ModelConfig(name=name), "cpu")
    task = make_task(TaskConfig.model_validate({"name": TINY[name].task}))
    prompts = [p.tokens for p in task.prompts("evaluate", 0, sequences)]
    tokens = torch.tensor(prompts)
    reserved = ReservedConfig(first_tokens=8, last_tokens=16)
    dense = Schedule.dense(page_size, dense_layers=1, reserved=reserved)
    sparse = Schedule.fixed(budget, page_size, dense_layers=1, reserved=reserved)
    engine = RolloutEngine(model, dense, max_batch=sequences)
    # generate fills what is None from the model's own configuration: take the stop token out there
    peer_model: Any = model
    peer_model.generation_config.eos_token_id = None
    fixed = GenerationConfig(do_sample=True, max_new_tokens=new_tokens, pad_token_id=0, top_k=0)

    def peer() -> None:
        with torch.no_grad():
            mask = torch.ones_like(tokens)
            out = peer_model.generate(tokens, attention_mask=mask, generation_config=fixed)
        if out.shape[1] != tokens.shape[1] + new_tokens:
            raise RuntimeError("the peer stopped early: the comparison would not be fair")

    def ours(schedule: Schedule) -> Callable[[], None]:
        def run() -> None:
            engine.set_schedule(schedule)
            # like the peer's, without hidden states, which only acceptance needs
            engine.generate(
                prompts, 1, RolloutConfig(), max_new_tokens=new_tokens, keep_hidden=False
            )

        return run

    ways = {
        "transformers generate": peer,
        "sparrow-lab dense": ours(dense),
        f"sparrow-lab sparse, budget {budget}": ours(sparse),
    }
    times: dict[str, list[float]] = {what: [] for what in ways}
    for turn in range(repeats + 1):
        for what, run in ways.items():
            began = time.perf_counter()
            run()
            if turn:  # the first turn warms up
                times[what].append(time.perf_counter() - began)
    total = sequences * new_tokens
    return [
        BenchRow(what, s, total / s, 1e3 * s / new_tokens)
        for what, s in ((what, statistics.median(t)) for what, t in times.items())
    ]
