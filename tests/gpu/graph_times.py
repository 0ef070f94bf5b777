"""Shared code of the benchmarks against PyTorch: timing in CUDA graphs, options, summaries."""

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

#: Bytes of operands that evict an earlier call's from L2: twice the L2 of an H200.
PAST_L2 = 2 * 60_000_000

Operands = TypeVar("Operands")


class TimedGraph:
    """A CUDA graph of ``calls`` calls, with events as nodes, so that host time is not measured."""

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
        """Run the graph once, and return the microseconds of a call."""
        self._graph.replay()
        torch.cuda.synchronize()
        return self._begin.elapsed_time(self._end) * 1e3 / self._calls


def numbers(dtype: str, *shape: int, device: str = "cuda") -> torch.Tensor:
    """Return random normal numbers of a type, or random integers for int8."""
    kind = getattr(torch, dtype)
    if dtype == "int8":
        return torch.randint(-100, 100, shape, device=device, dtype=kind)
    if dtype.startswith("float8"):
        return torch.randn(shape, device=device).to(kind)
    return torch.randn(shape, device=device, dtype=kind)


def clocked(runs: dict[str, Callable[[], Any]], calls: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of each call in every round, timed in turn after a warm-up round."""
    graphs = {name: TimedGraph(run, calls) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(rounds + 1):
        for name, graph in graphs.items():
            time = graph.microseconds()
            if turn:
                times[name].append(time)
    return times


def places(make: Callable[[], Operands], nbytes: int) -> list[Operands]:
    """Return enough copies of operands of ``nbytes`` that calls read DRAM, 64 at most."""
    return [make() for _ in range(max(1, min(64, -(-PAST_L2 // nbytes))))]


def in_turns(run: Callable[..., Any], copies: list[Any]) -> Callable[[], Any]:
    """Return a function that calls ``run`` with the operands of each copy in turn."""
    turns: Iterator[Any] = itertools.cycle(copies)
    return lambda: run(*next(turns))


def parsed(doc: str | None, **options: Any) -> argparse.Namespace:
    """Return the command line's options. Each has a default, or a default and a help text.

    None as a default removes a common option.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    common = {"seed": 1, "rounds": 7, "json": ("", "write all results to this file")}
    for name, given in (common | options).items():
        default, text = given if isinstance(given, tuple) else (given, None)
        if default is not None:
            parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    return parser.parse_args()


def write(path: str, found: Any) -> None:
    """Write results as JSON, if a file is given."""
    if path:
        Path(path).write_text(json.dumps(found, indent=1), encoding="utf-8")


def spread(ratios: list[float]) -> str:
    """Return the geometric mean, least and greatest of the ratios."""
    mean = statistics.geometric_mean(ratios)
    return f"{mean:.3f}, {min(ratios):.3f} to {max(ratios):.3f} of {len(ratios)}"


def extent(rng: random.Random, low: int, high: int, step: int = 8) -> int:
    """Return a random multiple of ``step``, uniform on a log scale."""
    return step * max(1, round(math.exp(rng.uniform(math.log(low), math.log(high))) / step))
