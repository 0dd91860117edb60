"""Time of one call on the GPU, the way a decode step runs: inside a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

Call = Callable[[], object]


def median_ms(calls: Sequence[Call], repeats: int = 15, graph: bool = True) -> float:
    """Median milliseconds of one call.

    All calls run back to back between two events, and the time is divided by their number. Give
    each its own inputs, together far larger than the L2 cache (50 MB), so that none finds its data
    there.

    Args:
        calls: at least one; run once before the first timing.
        repeats: timings that the median is taken over.
        graph: capture the calls in one CUDA graph, so that no launch waits for Python. False for
            what cannot be captured.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()

    def plain() -> None:
        for call in calls:
            call()

    run: Call = plain
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            plain()
        run = captured.replay
    return _median_ms(run, repeats) / len(calls)


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int = 15) -> float:
    """Median milliseconds of a graph that was captured already."""
    return _median_ms(graph.replay, repeats)


def _median_ms(run: Call, repeats: int) -> float:
    for _ in range(2):
        run()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)
