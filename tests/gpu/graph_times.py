"""Times of functions in CUDA graphs, in turns: what the benchmarks beside PyTorch share."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

#: Bytes after which no operand of an earlier call is in L2: twice that of an H200.
PAST_L2 = 2 * 60_000_000

Operands = TypeVar("Operands")


class TimedGraph:
    """A CUDA graph of so many calls. Its events are nodes of it: the host is not timed."""

    def __init__(self, run: Callable[[], Any], calls: int) -> None:
        self._calls = calls
        self._begin, self._end = (
            torch.cuda.Event(enable_timing=True, external=True) for _ in range(2)
        )
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            run()
            run()
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._begin.record()
            for _ in range(calls):
                run()
            self._end.record()

    def microseconds(self) -> float:
        """Run it once; microseconds of a call."""
        self._graph.replay()
        torch.cuda.synchronize()
        return self._begin.elapsed_time(self._end) * 1e3 / self._calls


def clocked(runs: dict[str, Callable[[], Any]], calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of each in every round, in turns; a round before them warms up."""
    graphs = {name: TimedGraph(run, calls) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, graph in graphs.items():
            time = graph.microseconds()
            if turn:
                times[name].append(time)
    return times


def places(make: Callable[[], Operands], nbytes: int) -> list[Operands]:
    """So many copies of operands of ``nbytes`` that in turns they come from DRAM, 64 at most."""
    return [make() for _ in range(max(1, min(64, -(-PAST_L2 // nbytes))))]


def in_turns(run: Callable[..., Any], copies: list[Any]) -> Callable[[], Any]:
    """Return a function that calls ``run`` with the operands of one copy after the other."""
    turns: Iterator[Any] = itertools.cycle(copies)
    return lambda: run(*next(turns))
