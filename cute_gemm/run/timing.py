"""Times of several functions in one run: batches of calls, in rounds, in changing order.

Clocks and power limits of a GPU change by more than the differences of interest. Functions that are
compared therefore take turns, and the comparison is the median of the rounds' ratios, not the ratio
of two separate times.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem

#: Resolution of two events, in milliseconds.
_RESOLUTION_MS = 5e-4
#: Time of one batch in milliseconds: long enough that the resolution does not matter.
_BATCH_MS = 10.0
_MOST_CALLS = 2000
_WARM_UP_CALLS = 3
#: Milliseconds of a first call after which no further warm-up is needed.
_SLOW_MS = 100.0
#: Milliseconds of all batches of a function, above which it is timed in fewer rounds.
_TOTAL_MS = 1000.0
_LEAST_ROUNDS = 2
#: Most copies of the matrices; small matrices would need more.
_MOST_COPIES = 256

Key = TypeVar("Key")
#: Calls a function so many times, and returns the milliseconds of one call.
Clock = Callable[[Callable[[], object], int], float]


@dataclass(frozen=True, slots=True)
class Samples:
    """The times of one function.

    ``calls``: calls of a batch; ``times``: the milliseconds of a call in each round, None for a
    round in which it was not timed.
    """

    calls: int
    times: tuple[float | None, ...]

    @property
    def taken(self) -> tuple[float, ...]:
        """The times of the rounds in which it was timed."""
        return tuple(time for time in self.times if time is not None)

    @property
    def median(self) -> float:
        """Median time of a call in milliseconds."""
        return statistics.median(self.taken)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartile of the times, interpolated between the rounds."""
        if len(self.taken) == 1:
            return self.taken[0], self.taken[0]
        first, _, third = statistics.quantiles(self.taken, n=4, method="inclusive")
        return first, third

    def ratio(self, other: Samples) -> float:
        """Return the median ratio of the other's time to this one's, over rounds with both."""
        rounds = zip(self.times, other.times, strict=True)
        return statistics.median(b / a for a, b in rounds if a is not None and b is not None)


def interleave(
    groups: Sequence[Mapping[Key, Callable[[], object]]],
    rounds: int,
    clock: Clock,
    step: Callable[[], None] = lambda: None,
) -> dict[Key, Samples]:
    """Warm up functions, determine the calls of their batches, and time all of them in turns.

    ``groups``: functions by name, those of a group next to each other in time. A batch has as many
    calls as take 10 ms, at least one and at most 2000. Each other round has the groups, and the
    functions of a group, in random order, and the round after it has the reverse order, so that no
    function always runs on the warmer chip or after the same one. A function whose batches together
    take more than a second is timed in fewer rounds, at least two, evenly spread up to the last
    one. ``step`` is called after each warm-up, and for each function in each round.
    """
    functions = {key: function for group in groups for key, function in group.items()}
    calls: dict[Key, int] = {}
    shares: dict[Key, int] = {}
    for key, function in functions.items():
        took = max(_warm_up(function, clock), 1e-4)
        calls[key] = min(_MOST_CALLS, max(1, round(_BATCH_MS / took)))
        shares[key] = min(rounds, max(_LEAST_ROUNDS, int(_TOTAL_MS / (calls[key] * took))))
        step()

    times: dict[Key, list[float | None]] = {key: [] for key in functions}
    for index, order in enumerate(_orders(groups, rounds)):
        for key in order:
            due = (index + 1) * shares[key] // rounds > index * shares[key] // rounds
            times[key].append(clock(functions[key], calls[key]) if due else None)
            step()
    return {key: Samples(calls[key], tuple(samples)) for key, samples in times.items()}


def _warm_up(function: Callable[[], object], clock: Clock) -> float:
    """Return the approximate milliseconds of a call."""
    first = clock(function, 1)  # includes loading and other one-time work
    return first if first > _SLOW_MS else clock(function, _WARM_UP_CALLS)


def _orders(groups: Sequence[Mapping[Key, object]], rounds: int) -> Iterator[list[Key]]:
    """Yield the order of the functions in each round, group by group."""
    chance = random.Random(0)
    order: list[Key] = []
    for index in range(rounds):
        if index % 2 == 0:
            shuffled = chance.sample(groups, len(groups))
            order = [key for group in shuffled for key in chance.sample(list(group), len(group))]
        yield order[::-1] if index % 2 else order


def device_clock(device: int = 0) -> Clock:
    """Return a clock for calls that start work on the legacy default stream of a device.

    Calls follow each other without a pause. If the host takes longer to start a call than the
    device to execute it, the time is that of the start.
    """
    from cute_gemm.run.launch import Event

    start, end = Event(device), Event(device)

    def clock(function: Callable[[], object], calls: int) -> float:
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return max(end.since(start), _RESOLUTION_MS) / calls

    return clock


def host_clock(function: Callable[[], object], calls: int) -> float:
    """Return the milliseconds of a call that returns when its work is done."""
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return 1e3 * (time.perf_counter() - start) / calls


def copies_past_l2(problem: GemmProblem, l2_bytes: int) -> int:
    """Return the number of copies of A, B and C that exceed twice the L2 cache; at most 256.

    If calls use the copies in turn, the next one is never in the cache. A single copy suffices if
    the matrices are larger than twice the cache.
    """
    each = max(1, sum(matrix.nbytes for matrix in (problem.A, problem.B, problem.C)))
    return min(_MOST_COPIES, 2 * l2_bytes // each + 1)


def l2_bytes(device: int = 0) -> int:
    """Return the size of a device's L2 cache."""
    from cute_gemm.run.driver import checked, device_properties, load_driver

    driver = load_driver()
    which = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    read = driver.cuDeviceGetAttribute(which, device_properties(device).handle)
    return int(checked(read, "reading its L2 cache")[0])
