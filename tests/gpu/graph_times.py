"""What the benchmarks beside PyTorch share: times in CUDA graphs, in turns, options, summaries."""

import argparse
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
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


def numbers(dtype: str, *shape: int, device: str = "cuda") -> torch.Tensor:
    """Random normal numbers of a type, or integers."""
    kind = getattr(torch, dtype)
    if dtype == "int8":
        return torch.randint(-100, 100, shape, device=device, dtype=kind)
    if dtype.startswith("float8"):
        return torch.randn(shape, device=device).to(kind)
    return torch.randn(shape, device=device, dtype=kind)


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


def parsed(doc: str | None, **options: Any) -> argparse.Namespace:
    """The options of the command line: each by its default, that and its help, or None for none."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    common = {"seed": 1, "rounds": 7, "json": ("", "a file to write everything to")}
    for name, given in (common | options).items():
        default, text = given if isinstance(given, tuple) else (given, None)
        if default is not None:
            parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return parser.parse_args()


def write(path: str, found: Any) -> None:
    """Write what was measured, where a file is given."""
    if path:
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def spread(ratios: list[float]) -> str:
    """The geometric mean of ratios, the least and the greatest."""
    mean = statistics.geometric_mean(ratios)
    return f"{mean:.3f}, {min(ratios):.3f} to {max(ratios):.3f} of {len(ratios)}"


def extent(rng: random.Random, low: int, high: int, step: int = 8) -> int:
    """A multiple of ``step``, drawn evenly on a log scale."""
    return step * max(1, round(math.exp(rng.uniform(math.log(low), math.log(high))) / step))
