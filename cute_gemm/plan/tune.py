"""Tuning (``tune=True``): measure the fastest candidates of a plan on its device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._log import logger
from cute_gemm.arrays.base import ALIGNMENT
from cute_gemm.errors import GemmError, LaunchError
from cute_gemm.kernels.candidate import Measured, label
from cute_gemm.plan.builds import Builds
from cute_gemm.plan.plan import Plan
from cute_gemm.plan.tuned import measurement
from cute_gemm.problem.parts.groups import stored_ends
from cute_gemm.problem.values import random_values
from cute_gemm.run.timing import copies_past_l2, device_clock, interleave, l2_bytes
from cute_gemm.toolchain import cache

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Random numbers that are repeated to fill a matrix: more take longer than the measurement.
_NUMBERS = 1 << 20
_ROUNDS = 9


class Tuning(NamedTuple):
    """How ``tune=`` measures.

    Attributes
    ----------
    candidates
        Number of candidates that are measured, those with the shortest predicted times.
    again
        Whether to measure even if a measurement is stored.
    tell
        A function that is called with the name of a step, the parts that are done and their total.
    """

    candidates: int = 8
    again: bool = False
    tell: Callable[[str, int, int], None] = lambda *_: None

    def takes(self, known: Measured | None) -> bool:
        """Return whether a stored config, or None, makes measuring unnecessary."""
        return known is not None and not self.again


def measure(plan: Plan, tuning: Tuning) -> Measured:
    """Build the fastest candidates of a plan, time them in turns, and return the fastest.

    The matrices are random and together exceed twice the L2 cache. alpha is 1 and beta 0.
    Candidates that cannot be built or launched are left out; if none remains, the first error is
    raised. One process at a time measures on a device; others wait.
    """
    from cute_gemm.run.driver import bus_id, entered

    problem, device = plan.problem, plan.device or 0
    candidates = plan.candidates()[: tuning.candidates]
    plans = [plan.taking(candidate, device) for candidate in candidates]
    builds = Builds(plans)
    builds.finish(partial(tuning.tell, "compile"))
    numbers: dict[str, Any] = dict.fromkeys(problem.epilogue.numbers, 1.0)
    failed: list[GemmError] = []
    with (
        cache.locked(f"timing-{bus_id(device)}"), entered(device),
        matrices(problem, device, l2_bytes(device)) as places,
    ):  # fmt: skip
        turns = cycle(places)
        bound = launched_once(plans, builds, places[0], device, failed, **numbers)
        calls = {index: partial(_next, start, turns) for index, start in bound.items()}
        steps = iter(range(1, (_ROUNDS + 1) * len(calls) + 1))
        samples = interleave(
            [calls], _ROUNDS, device_clock(device),
            lambda: tuning.tell("time", next(steps), (_ROUNDS + 1) * len(calls)),
        )  # fmt: skip
    if not calls:
        raise failed[0]
    # Ratios within a round do not depend on clocks that change between rounds.
    first = samples[min(calls)]
    best = max(calls, key=lambda index: samples[index].ratio(first))
    seconds = samples[best].median / 1e3
    result = measurement(plans[best], seconds, len(calls))
    logger.info(
        "measured %d configs: %s is the fastest, %.1f us", len(calls), result.config, 1e6 * seconds
    )
    if best == 0:
        return result
    predicted = seconds * samples[best].ratio(samples[0]) if 0 in calls else 0.0
    return result._replace(predicted=label(candidates[0]), predicted_seconds=predicted)


def launched_once(
    plans: Iterable[Plan], builds: Builds, place: tuple[int, ...], device: int,
    failed: list[GemmError], **numbers: Any,
) -> dict[int, Callable[..., None]]:  # fmt: skip
    """Launch each plan once; return functions that start those that ran, by place in ``plans``.

    Append the errors of the rest to ``failed``. Raise LaunchError if a kernel fails: after that
    nothing else can run.
    """
    from cute_gemm.run.driver import synchronize

    bound: dict[int, Callable[..., None]] = {}
    for index, plan in enumerate(plans):
        try:
            builds.of(plan)
            start = plan.bind(device, **numbers)
            start(place)
        except GemmError as error:
            failed.append(error)
            continue
        try:
            synchronize(device)
        except LaunchError as error:
            raise LaunchError(f"{plan.symbol}: {error}") from error
        bound[index] = start
    return bound


def _next(bound: Callable[..., None], turns: Iterator[tuple[int, ...]]) -> None:
    bound(next(turns))


@contextmanager
def matrices(problem: GemmProblem, device: int, l2_bytes: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield the addresses of all matrices of each copy, aligned exactly as the problem's.

    The copies, of random numbers, exceed twice the L2 cache together.

    They are A, B and C, the ends of groups of equal sizes if there are any, and the epilogue's
    operands and results.
    """
    from cute_gemm.run import memory

    random = np.random.default_rng(0)
    with ExitStack() as stack:
        places: list[list[int]] = []
        for matrix in problem.matrices:
            offset = (matrix.first_alignment or matrix.alignment) % ALIGNMENT
            if matrix.name == "offsets" and problem.groups:
                values = stored_ends(problem, offset)
            else:
                values = _values(matrix, offset, random)
            places.append([
                stack.enter_context(memory.upload(values, device)).pointer + offset
                for _ in range(copies_past_l2(problem, l2_bytes))
            ])  # fmt: skip
        try:
            yield list(zip(*places, strict=True))
        except LaunchError:  # memory cannot be freed after it
            stack.pop_all()
            raise


def _values(matrix: Matrix, offset: int, random: np.random.Generator) -> np.ndarray:
    """Return random numbers for the bytes that a matrix spans and the ``offset`` before them."""
    count = -(-(matrix.span + offset) // matrix.element.bytes)
    numbers = random_values(random, (min(count, _NUMBERS),), matrix.dtype)
    return np.resize(numbers, (count, 1))
