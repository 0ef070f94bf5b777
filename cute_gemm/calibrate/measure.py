"""Measurement of contests on the device: kernels are built while others are timed."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

from cute_gemm.calibrate.times import Contest, Entry, measured
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.plan.builds import Builds
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.tune import launched_once, matrices
from cute_gemm.run.timing import l2_bytes

#: Contests whose kernels are built at a time.
_TOGETHER = 16
#: Milliseconds of a graph, its most calls, and rounds, in which all configs take turns.
_GRAPH_MS, _MOST_CALLS, _ROUNDS = 1.0, 100, 5

Tell = Callable[[str, int, int], None]


def times(
    contests: Iterator[Contest], gpu: Gpu, seconds: float, device: int = 0,
    tell: Tell = lambda *_: None,
) -> Iterator[Contest]:  # fmt: skip
    """Measure contests, for so many seconds, and yield each with its times.

    ``gpu``: the GPU of the device. Configs that cannot be built are left out, and contests with
    fewer than two others. LaunchError if a kernel fails.
    """
    begin = time.monotonic()
    #: Contests with their plans, whose kernels are being built.
    queue: deque[tuple[list[tuple[Contest, dict[Entry, Plan]]], Builds]] = deque()

    def left() -> float:
        return seconds - (time.monotonic() - begin)

    def more() -> None:
        planned = [(x, _plans(x, gpu, device)) for x in islice(contests, _TOGETHER)]
        builds = Builds([plan for _, plans in planned for plan in plans.values()])
        queue.append((planned, builds))

    more()
    try:
        while left() > 0:
            more()
            planned, builds = queue.popleft()
            for contest, plans in planned:
                if left() <= 0:
                    break
                microseconds = _timed(plans, builds, device)
                tell("measure", int(seconds - left()), int(seconds))
                if len(microseconds) > 1:
                    yield measured(contest, microseconds)
            builds.close()
    finally:
        for _, builds in queue:
            builds.close()


def _plans(contest: Contest, gpu: Gpu, device: int) -> dict[Entry, Plan]:
    plan = contest.plan(gpu)
    return {entry: plan.taking(x, device) for entry, x in contest.candidates(gpu).items()}


def _timed(plans: dict[Entry, Plan], builds: Builds, device: int) -> dict[Entry, float]:
    """Return the microseconds of a call of each plan that can be built and launched."""
    from cute_gemm.run.driver import entered
    from cute_gemm.run.graph import Graph

    runs: dict[Entry, tuple[Graph, int]] = {}
    with ExitStack() as stack:
        stack.enter_context(entered(device))
        problem = next(iter(plans.values())).problem
        places = stack.enter_context(matrices(problem, device, l2_bytes(device)))

        def graph(bound: Callable[..., None], calls: int) -> Graph:
            each = (
                lambda stream, place=place: bound(places[place % len(places)], stream)
                for place in range(calls)
            )
            return stack.enter_context(Graph(each, device))

        entries = list(plans)
        for index, bound in launched_once(plans.values(), builds, places[0], device, []).items():
            first = graph(bound, 2)
            first.milliseconds()
            took = max(first.milliseconds() / 2, 1e-3)
            calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / took)))
            runs[entries[index]] = graph(bound, calls), calls
        microseconds: dict[Entry, list[float]] = {entry: [] for entry in runs}
        for turn in range(_ROUNDS + 1):
            for entry, (run, calls) in runs.items():
                milliseconds = run.milliseconds()
                if turn:  # the first warms up
                    microseconds[entry].append(milliseconds / calls * 1e3)
    return {entry: round(statistics.median(x), 3) for entry, x in microseconds.items()}
