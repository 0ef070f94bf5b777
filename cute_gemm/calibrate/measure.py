"""Times of contests on the device: kernels are built while others are timed."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING

from cute_gemm.calibrate.times import Contest, Entry, measured
from cute_gemm.errors import GemmError, LaunchError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.plan.builds import Builds
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.tune import matrices
from cute_gemm.run.timing import l2_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Contests whose kernels are built at a time.
_TOGETHER = 16
#: Milliseconds of a graph, most calls of it, and rounds, in which all configs take turns.
_GRAPH_MS, _MOST_CALLS, _ROUNDS = 1.0, 100, 5

Tell = Callable[[str, int, int], None]


class _Built:
    """Contests whose kernels are being built."""

    def __init__(self, contests: Sequence[Contest], gpu: Gpu, device: int) -> None:
        self.contests = [(contest, _plans(contest, gpu, device)) for contest in contests]
        self.builds = Builds([plan for _, plans in self.contests for plan in plans.values()])


def times(
    contests: Iterator[Contest], gpu: Gpu, seconds: float, device: int = 0,
    tell: Tell = lambda *_: None,
) -> Iterator[Contest]:  # fmt: skip
    """Measure contests, for so many seconds, and yield each with its times.

    ``gpu``: that of the device. Configs that cannot be built are left out, and contests with fewer
    than two others. LaunchError where a kernel fails.
    """
    begin = time.monotonic()
    queue: deque[_Built] = deque()

    def left() -> float:
        return seconds - (time.monotonic() - begin)

    def more() -> None:
        queue.append(_Built(list(islice(contests, _TOGETHER)), gpu, device))

    more()
    try:
        while left() > 0:
            more()
            batch = queue.popleft()
            for contest, plans in batch.contests:
                if left() <= 0:
                    break
                microseconds = _timed(plans, batch.builds, device)
                tell("measure", int(seconds - left()), int(seconds))
                if len(microseconds) > 1:
                    yield measured(contest, microseconds)
            batch.builds.close()
    finally:
        for batch in queue:
            batch.builds.close()


def _plans(contest: Contest, gpu: Gpu, device: int) -> dict[Entry, Plan]:
    plan = contest.plan(gpu)
    return {entry: plan.taking(x, device) for entry, x in contest.candidates(gpu).items()}


def _timed(plans: dict[Entry, Plan], builds: Builds, device: int) -> dict[Entry, float]:
    """Return the microseconds of a call of each plan that can be built and launched."""
    from cute_gemm.run.driver import entered, synchronize
    from cute_gemm.run.graph import Graph

    runs: dict[Entry, tuple[Graph, int]] = {}
    with ExitStack() as stack:
        stack.enter_context(entered(device))
        problem = next(iter(plans.values())).problem
        places = stack.enter_context(matrices(problem, device, l2_bytes(device)))
        for entry, plan in plans.items():
            try:
                builds.of(plan)
                bound = plan.bind(device)
                bound(places[0])
            except GemmError:
                continue
            try:
                synchronize(device)
            except LaunchError as error:  # after a kernel that failed nothing else can run
                raise LaunchError(f"{plan.symbol}: {error}") from error

            def graph(calls: int, bound: Callable[..., None] = bound) -> Graph:
                each = (
                    lambda stream, place=place: bound(places[place % len(places)], stream)
                    for place in range(calls)
                )
                return stack.enter_context(Graph(each, device))

            first = graph(2)
            first.milliseconds()
            took = max(first.milliseconds() / 2, 1e-3)
            calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / took)))
            runs[entry] = graph(calls), calls
        microseconds: dict[Entry, list[float]] = {entry: [] for entry in runs}
        for turn in range(_ROUNDS + 1):
            for entry, (run, calls) in runs.items():
                milliseconds = run.milliseconds()
                if turn:  # the first warms up
                    microseconds[entry].append(milliseconds / calls * 1e3)
    return {entry: round(statistics.median(x), 3) for entry, x in microseconds.items()}
