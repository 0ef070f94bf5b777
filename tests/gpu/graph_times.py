"""Times of functions in CUDA graphs, in turns: what the benchmarks beside PyTorch share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def captured(run: Callable[[], Any], reps: int) -> torch.cuda.CUDAGraph:
    """A graph of so many calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(reps):
            run()
    return graph


def clocked(runs: dict[str, Callable[[], Any]], reps: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of each in every round, in turns."""
    graphs = {name: captured(run, reps) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            if turn:
                times[name].append(begin.elapsed_time(end) * 1e3 / reps)
    return times
