"""``tune="online"``: calls of a shape run its best candidates in turns, and time them.

After `CALLS` calls, so that shapes of few calls cost nothing, the candidates that are predicted to
take up to `WITHIN` times as long as the best are built in the background. Until all of them are
built, calls run the best. After that each call runs one of them between two events of its stream;
later calls read the events once the device has reached them, so that no call waits. The fastest
config is stored as a measured config (`cute_gemm.plan.tuned`) and used.

Other threads compile, and do not use the device, where a graph may be captured meanwhile.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from statistics import median
from threading import Lock
from typing import TYPE_CHECKING, Any

from cute_gemm._log import logger
from cute_gemm.errors import GemmError
from cute_gemm.kernels.candidate import Measured, label
from cute_gemm.plan.background import is_batch_invariant
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.tuned import measurement

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cute_gemm.call import Call
    from cute_gemm.run.launch import Event

#: Calls before the other candidates are built.
CALLS = 100
#: Number of candidates that are timed, and their largest predicted time in times of the best.
CANDIDATES, WITHIN = 6, 1.15
#: Timed calls of each candidate, after a first call.
TIMED = 3


def asks(tune: Any) -> bool:
    """Return whether ``tune`` of a call is "online"; if it is False, whether CUTE_GEMM_TUNE is."""
    if tune is False:
        return os.environ.get("CUTE_GEMM_TUNE") == "online"
    return isinstance(tune, str) and tune == "online"


def may_vary(plan: Plan, call: Call) -> bool:
    """Return whether the kernel of a plan may change from call to call.

    It may not with ``batch_invariant``, nor with groups, whose times depend on sizes that only the
    device knows.
    """
    return plan.compiled and not plan.problem.groups and not is_batch_invariant(call)


def tune_online(plan: Plan, take: Callable[[Measured], Plan]) -> None:
    """Let calls of a plan time its best candidates.

    ``take`` stores the fastest, and returns the plan that uses it.
    """
    plan.online = tuning = OnlineTuning(plan, take)
    plan.executable.wrap_launch = tuning.launch
    plan.executable.is_replaced = lambda: False  # until the fastest is known


class OnlineTuning:
    """The best candidates of a plan, which its calls run in turns.

    ``take``: as in `tune_online`. Calls may come from any thread.
    """

    def __init__(self, plan: Plan, take: Callable[[Measured], Plan]) -> None:
        #: The plan and, once their builds have begun, those of the other candidates; their names.
        self.plans, self.names = [plan], [plan.config.name]
        self._take = take
        self._lock = Lock()
        self._calls = self._timed = 0
        self._building: Future[list[Future[Any]]] | None = None
        #: Milliseconds by candidate, and events that are not read yet.
        self._times: dict[int, list[float]] = {}
        self._running: deque[tuple[int, Event, Event]] = deque()
        #: The fastest candidate, once it is known; all calls run it.
        self.fastest: int | None = None

    def __str__(self) -> str:
        if self.fastest is not None:
            return f"calls run {self.names[self.fastest]}, the fastest that they timed"
        if len(self.plans) == 1:
            return f"the best configs are timed after {CALLS} calls"
        return f"calls time {len(self.plans)} configs in turns"

    def launch(self, own: Callable[..., None], *how: Any) -> Callable[..., None]:
        """Return a launch in turns; ``own`` is the plan's, ``how`` is as in `Executable.launch`."""

        def start(at: tuple[int, ...], stream: int = 0) -> None:
            place, events = self._next(stream)
            try:
                bound = own if place == 0 else self.plans[place].executable.launch(*how)
            except GemmError:  # it cannot be loaded, so it has no times and is not selected
                bound, events = own, None
            if events is None:
                return bound(at, stream)
            events[0].record(stream)
            bound(at, stream)
            events[1].record(stream)
            self._running.append((place, *events))
            return None

        return start

    def _next(self, stream: int) -> tuple[int, tuple[Event, Event] | None]:
        """Return which candidate a call runs, and the events that time it, or None."""
        if self.fastest is not None:
            return self.fastest, None
        if not self._lock.acquire(blocking=False):
            return 0, None
        try:
            return self._next_in_turn(stream)
        finally:
            self._lock.release()

    def _next_in_turn(self, stream: int) -> tuple[int, tuple[Event, Event] | None]:
        from cute_gemm.run.launch import Event, is_capturing
        from cute_gemm.toolchain.workers import builders

        self._calls += 1
        if self._calls <= CALLS:
            return 0, None
        if self._building is None:
            self._building = builders().submit(self._build)
        if not self._building.done():
            return 0, None
        builds = [] if self._building.exception() else self._building.result()
        if not all(build.done() for build in builds) or _deterministic() or is_capturing(stream):
            return 0, None
        places = [0, *(i for i, x in enumerate(builds, 1) if x.exception() is None)]
        if len(places) == 1:
            self.fastest = 0
            return 0, None
        while self._running and self._running[0][2].is_reached():
            place, begin, end = self._running.popleft()
            self._times.setdefault(place, []).append(end.since(begin))
        if self._timed < (1 + TIMED) * len(places):
            place = places[self._timed % len(places)]
            self._timed += 1
            device = self.plans[0].device or 0
            return place, (Event(device), Event(device))
        if not self._running:
            self._settle()
        return self.fastest or 0, None

    def _build(self) -> list[Future[Any]]:
        """Begin to build the other candidates."""
        (plan,) = self.plans
        near = plan.candidates(within=WITHIN)[:CANDIDATES]  # the plan's config is the first
        self.names = [label(x) for x in near]
        self.plans = [plan, *(plan.taking(x, plan.device) for x in near[1:])]
        return [x.prepare() for x in self.plans[1:]]

    def _settle(self) -> None:
        """Use the fastest: in this process at once, in other processes once it is stored."""
        from cute_gemm.toolchain.workers import builders

        # The first call of each loads modules that later calls find.
        times = {place: median(all_[1:] or all_) / 1e3 for place, all_ in self._times.items()}
        self.fastest = best = min(times, key=times.__getitem__)
        found = measurement(self.plans[best], times[best], len(times))
        if best:
            found = found._replace(predicted=self.names[0], predicted_seconds=times.get(0, 0.0))
        logger.info("%r: %s, %s", self.plans[0], self.names[best], found)
        builders().submit(self._replace, found)

    def _replace(self, found: Measured) -> None:
        try:
            better = self._take(found)
        except (GemmError, OSError) as error:  # it is not stored, but calls run it
            logger.warning("a measured config could not be stored: %s", error)
            return
        self.plans[0].replace_by(better)


def _deterministic() -> bool:
    """Return whether PyTorch must give the same bits in every run."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.are_deterministic_algorithms_enabled())
