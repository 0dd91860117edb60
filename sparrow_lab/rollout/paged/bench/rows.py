"""What `sparrow-lab bench rollout` measures: each line beside its byte floor and its aim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from sparrow_kernels.bench.row import Row, byte_floor
from sparrow_lab.config.schema import ReservedConfig, RolloutConfig
from sparrow_lab.rollout.decoder import Decoder
from sparrow_lab.rollout.paged.bench.peers import peer_rows
from sparrow_lab.rollout.paged.bench.shapes import (
    find_shape,
    random_decoder,
    random_model,
    step_bytes,
)
from sparrow_lab.rollout.paged.bench.timer import StepTimer
from sparrow_lab.rollout.paged.engine import PagedEngine
from sparrow_lab.rollout.paged.memory import pages_for
from sparrow_lab.rollout.paged.pool import pages_of
from sparrow_lab.rollout.paged.runner import layout_of
from sparrow_lab.sparsity.presets import load_preset
from sparrow_lab.sparsity.schedule import Schedule

PARTS = ("step", "table4", "trajectory", "whole", "peers")
"""What can be asked for alone."""

SCHEDULES = {
    "qwen3-1.7b": ["qwen3-1.7b-0.86"],
    "qwen3-4b": ["qwen3-4b-0.86"],
    "qwen3-8b": ["qwen3-8b-0.86", "qwen3-8b-0.87"],
    "qwen3-14b": ["qwen3-14b-0.86"],
}
PAPER = {
    "qwen3-1.7b": (5662, 2.21),
    "qwen3-4b": (3308, 2.41),
    "qwen3-8b": (2682, 2.06),
    "qwen3-14b": (2289, 1.49),
}
"""The paper's tokens/s on four H200, and how many times faster sparse was than dense."""

TABLE4 = {16: (4.59, 5.13, 5.41), 32: (4.47, 4.96, 5.30), 64: (4.30, 4.87, 5.12)}
"""The paper's milliseconds a step by page size at 16k, 24k and 32k."""

DENSE_AIM, SPARSE_AIM, TABLE4_AIM = 1.20, 1.35, 1.5
START, END, EVERY = 512, 37_000, 2_000
"""A trajectory's first and last length, and how often its step is timed."""


def rows(part: str, model: str, device: torch.device, quick: bool) -> Iterator[Row]:
    """Lines of one part for one model.

    Args:
        quick: few lengths, few repetitions: does everything run?
    """
    if part == "whole":
        yield from whole_rows(model, device, *((8, 64, 16) if quick else (64, 4096, 256)))
        return
    if part == "peers":
        schedule = load_preset(SCHEDULES[model][0])
        yield from peer_rows(model, device, *((4, 64, 8) if quick else (16, 2048, 32)), schedule)
        return
    decoder = random_decoder(find_shape(model), device)
    if part == "step":
        yield from step_rows(decoder, model, 4 if quick else 28, 2_000 if quick else 20_000)
    elif part == "table4":
        yield from table4_rows(decoder, 4 if quick else 16, 5 if quick else 15)
    else:
        yield from trajectory_rows(decoder, model, 10_000 if quick else EVERY)


def step_rows(decoder: Decoder, model: str, batch: int, length: int) -> Iterator[Row]:
    """One step of a batch, dense and by the paper's schedules."""
    sparse = [load_preset(name) for name in SCHEDULES[model]]
    timer = StepTimer(decoder, sparse[0], batch, length)
    for schedule in (Schedule.dense(sparse[0].page_size), *sparse):
        ms = timer.ms(schedule, length)
        yield _row(decoder, schedule, "step", batch, length, ms)


def table4_rows(decoder: Decoder, batch: int, repeats: int) -> Iterator[Row]:
    """The paper's Table 4: a budget of 1,024 tokens, all kept pages counted."""
    for size, paper in TABLE4.items():
        reserved = ReservedConfig(first_pages=1, last_pages=2)
        schedule = Schedule.fixed(1024, size, dense_layers=1, reserved=reserved)
        timer = StepTimer(decoder, schedule, batch, 32_768)
        for length, theirs in zip((16_384, 24_576, 32_768), paper, strict=True):
            ms = timer.ms(schedule, length, repeats)
            note = f"paper {theirs} ms: {theirs / ms:.2f} times faster"
            row = _row(decoder, schedule, "table 4", batch, length, ms)
            yield replace(row, aim_ms=theirs / TABLE4_AIM, note=note)
        del timer  # its cache goes before the next one comes


def trajectory_rows(decoder: Decoder, model: str, every: int) -> Iterator[Row]:
    """A whole answer of as many sequences as fit, from steps timed every so many tokens.

    Between two timed lengths the time of a step is taken to be on a straight line.
    """
    sparse = [load_preset(name) for name in SCHEDULES[model]]
    layout = layout_of(decoder, sparse[0])
    memory = 0.92 if decoder.device.type == "cuda" else 64 * 2**20
    batch = pages_for(memory, layout, decoder.device) // pages_of(END, layout.page_size)
    lengths = sorted({START, *range(every, END, every), END})
    timer = StepTimer(decoder, sparse[0], batch, END)
    dense_s = 0.0
    for schedule in (Schedule.dense(layout.page_size), *sparse):
        ms = [timer.ms(schedule, n, 5) for n in lengths]
        floors = [byte_floor(step_bytes(decoder, schedule, batch, n)) for n in lengths]
        mean, floor = _mean(lengths, ms), _mean(lengths, floors)
        seconds = mean * (END - START) / 1e3
        dense_s = dense_s or seconds
        rate = batch * (END - START) / seconds
        note = f"{rate:,.0f} tokens/s"
        if not schedule.is_dense:
            paper, times = PAPER[model]
            note += f", {dense_s / seconds:.2f} times dense (paper {times})"
            note += f", {rate / (paper / 4):.2f} times the paper's {paper / 4:,.0f} a GPU"
        yield Row(
            "trajectory",
            f"{model}, {batch} sequences, {START} to {END}, timed every {every}",
            schedule.name,
            mean,
            int(floor / byte_floor(1)),
            0,
            floor,
            aim_ms=floor * (DENSE_AIM if schedule.is_dense else SPARSE_AIM),
            note=note,
        )


def whole_rows(
    model: str, device: torch.device, prompts: int, length: int, new: int
) -> Iterator[Row]:
    """Rollouts from prompts to a batch in host memory; a step here is all that the host does too.

    The time of a rollout of one token, which is prefill, is taken off before it is divided.
    """
    loaded = random_model(find_shape(model), device)
    noise = torch.Generator().manual_seed(0)
    vocabulary = int(loaded.config.vocab_size)
    asked = torch.randint(vocabulary, (prompts, length), generator=noise).tolist()
    sparse = [load_preset(name) for name in SCHEDULES[model]]
    memory = 0.8 if device.type == "cuda" else None
    engine = PagedEngine(loaded, sparse[0], prompts, memory=memory)

    def seconds(tokens: int) -> float:
        return engine.generate(asked, 1, RolloutConfig(), max_new_tokens=tokens).seconds

    for schedule in (*sparse, Schedule.dense(sparse[0].page_size)):
        engine.set_schedule(schedule)
        seconds(new)  # compiles and captures
        whole, first = seconds(new), seconds(1)
        lengths = [length, length + new]
        floors = [byte_floor(step_bytes(engine.decoder, schedule, prompts, n)) for n in lengths]
        floor = _mean(lengths, floors)
        yield Row(
            "whole rollout",
            f"{model}, {prompts} prompts of {length}, {new} new tokens",
            schedule.name,
            (whole - first) / (new - 1) * 1e3,
            int(floor / byte_floor(1)),
            0,
            floor,
            note=f"{prompts * new / whole:,.0f} tokens/s with {first:.2f} s of prefill",
        )


def _mean(lengths: list[int], values: list[float]) -> float:
    """Mean over lengths of what is on straight lines between these."""
    pairs = list(zip(lengths, values, strict=True))
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(pairs))
    return area / (lengths[-1] - lengths[0])


def _row(decoder: Decoder, schedule: Schedule, op: str, batch: int, length: int, ms: float) -> Row:
    count = step_bytes(decoder, schedule, batch, length)
    floor = byte_floor(count)
    sizes = f"{decoder.layers} layers of {decoder.width}, batch {batch}, {length} cached"
    return Row(
        op,
        f"{sizes}, page {schedule.page_size}",
        schedule.name,
        ms,
        count,
        0,
        floor,
        aim_ms=floor * (DENSE_AIM if schedule.is_dense else SPARSE_AIM),
        note=f"{batch / ms * 1e3:,.0f} tokens/s",
    )
