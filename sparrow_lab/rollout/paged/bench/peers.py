"""The engine beside what comes with transformers: `generate` and `generate_batch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_lab.config.schema import RolloutConfig
from sparrow_lab.rollout.paged.bench.shapes import find_shape, random_model, step_bytes
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.sparsity.schedule import Schedule

AIM = 8.0
"""Times generate_batch that are aimed at."""


def peer_rows(
    model: str, device: torch.device, prompts: int, length: int, new: int, schedule: Schedule
) -> Iterator[Row]:
    """The same prompts by all, each with its own prefill, and `new` sampled tokens a prompt.

    Every one runs once before it is timed. Milliseconds are those of the whole, prefill included,
    divided by the new tokens of a prompt.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    loaded: Any = random_model(find_shape(model), device)
    noise = torch.Generator().manual_seed(0)
    asked = torch.randint(int(loaded.config.vocab_size), (prompts, length), generator=noise)
    config = GenerationConfig(
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        eos_token_id=-1,
        pad_token_id=0,
    )
    batching = ContinuousBatchingConfig(max_memory_percent=0.5)

    def generate() -> None:
        loaded.generate(asked.to(device), generation_config=config)

    def generate_batch() -> None:
        made = loaded.generate_batch(
            asked.tolist(), generation_config=config, continuous_batching_config=batching
        )
        count = sum(len(one.generated_tokens) for one in made.values())
        if count != prompts * new:
            raise RuntimeError(
                f"generate_batch made {count} tokens, {prompts * new} were asked for"
            )

    peers: dict[str, Callable[[], None]] = {
        "transformers generate": generate,
        "transformers generate_batch": generate_batch,
    }
    taken = {}
    for name, run in peers.items():
        taken[name] = _second_time(run, device)
        torch.cuda.empty_cache()
    engine = PagedEngine(loaded, schedule, prompts, memory=0.5 if device.type == "cuda" else None)

    def ours() -> None:
        engine.generate(asked.tolist(), 1, RolloutConfig(), max_new_tokens=new)

    schedules = [Schedule.dense(schedule.page_size), schedule]
    for one in schedules:
        engine.set_schedule(one)
        taken[one.name] = _second_time(ours, device)
    base = taken["transformers generate_batch"]
    floors = {
        one.name: byte_floor(step_bytes(engine.decoder, one, prompts, length)) for one in schedules
    }
    for name, seconds in taken.items():
        peer = name in peers
        yield Row(
            "peers",
            f"{model}, {prompts} prompts of {length}, {new} new tokens",
            name,
            seconds / new * 1e3,
            0,
            0,
            floors.get(name, floors[schedules[0].name]),
            peer=peer,
            aim_ms=None if peer else base / new * 1e3 / AIM,
            note=f"{prompts * new / seconds:,.0f} tokens/s, {base / seconds:.2f} x generate_batch",
        )


def _second_time(run: Callable[[], None], device: torch.device) -> float:
    """Seconds of a call, after one that compiles, captures and warms up."""
    for _ in range(2):
        began = time.perf_counter()
        with torch.no_grad():  # generate_batch writes into tensors of an earlier call
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    return seconds
