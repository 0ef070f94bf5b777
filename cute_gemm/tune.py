"""The cheapest candidates of a plan, measured on its device: what ``tune=True`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cute_gemm.builds import Builds
from cute_gemm.errors import GemmError, LaunchError
from cute_gemm.frameworks.base import ALIGNMENT
from cute_gemm.kernels.candidate import label
from cute_gemm.plan import Plan
from cute_gemm.problem.values import random_values
from cute_gemm.run.timing import copies_past_l2, device_clock, interleave, l2_bytes
from cute_gemm.select import Choice
from cute_gemm.tuned import Measured

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

#: Random numbers that a matrix is filled with, again and again: to make more takes longer than to
#: measure.
_NUMBERS = 1 << 20
_ROUNDS = 9


class Tuning(NamedTuple):
    """How to measure: the cheapest ``candidates``; ``again``, where a choice is stored, too.

    ``tell`` is called with what is being done, how much of it is done, and of how much.
    ``heuristics``: also the candidates that are nearest to what ``nvidia-matmul-heuristics``
    recommends (``pip install 'cute-gemm[heuristics]'``), 8 at most; a choice that is stored counts
    if it was measured so.
    """

    candidates: int = 8
    again: bool = False
    tell: Callable[[str, int, int], None] = lambda *_: None
    heuristics: bool = False

    def takes(self, known: Measured | None) -> bool:
        """Whether a choice that is stored, or None, need not be measured."""
        answered = known is not None and (known.advised is not None or not self.heuristics)
        return answered and not self.again


def measure(plan: Plan, tuning: Tuning) -> Measured:
    """Build the cheapest candidates of a plan, run each, time them in turns, return the fastest.

    On random matrices of its own, so many that they exceed twice the L2 cache, with alpha 1 and
    beta 0. What cannot be built or launched is left out; where nothing is left its error is raised.
    """
    from cute_gemm.run.driver import entered, synchronize

    problem, device = plan.problem, plan.device or 0
    candidates = plan.candidates()
    offers = list(candidates[: tuning.candidates])
    cheapest = len(offers)
    if tuning.heuristics:
        from cute_gemm.heuristics import advised

        numbers = advised(problem, plan.gpu, candidates)
        offers += [candidates[i] for i in numbers if i >= cheapest]
    plans = [
        Plan(problem, "cuda", device, plan.arch,
             Choice(one.kernel, one.config, plan.gpu, plan.candidates, one.route))
        for one in offers
    ]  # fmt: skip
    builds = Builds(plans)
    builds.finish(partial(tuning.tell, "compile"))
    failed: list[GemmError] = []
    calls: dict[int, Callable[[], None]] = {}
    with entered(device), _matrices(problem, device) as places:
        turns = cycle(places)
        for index, one in enumerate(plans):
            try:
                builds.of(one)
                bound = one.bind(device)
                bound(places[0])
            except GemmError as error:
                failed.append(error)
                continue
            try:
                synchronize(device)
            except LaunchError as error:  # it ran and failed; nothing can run after that
                raise LaunchError(f"{one.symbol}: {error}") from error
            calls[index] = partial(_next, bound, turns)
        steps = iter(range(1, (_ROUNDS + 1) * len(calls) + 1))
        samples = interleave(
            [calls], _ROUNDS, device_clock(device),
            lambda: tuning.tell("time", next(steps), (_ROUNDS + 1) * len(calls)),
        )  # fmt: skip
    if not calls:
        raise failed[0]
    # The rounds' ratios tell them apart, whatever the clocks did between two rounds.
    first = samples[min(calls)]
    best = max(calls, key=lambda index: samples[index].ratio(first))
    took = samples[best].median / 1e3
    route = offers[best].route
    known = Measured(
        offers[best].kernel.name, plans[best].symbol, route.pack, route.split_k, took, len(calls)
    )
    if tuning.heuristics:
        known = known._replace(
            advised={
                label(offers[index], whole=True): took * samples[best].ratio(samples[index])
                for index in calls
                if index >= cheapest
            },
            advice_won=best >= cheapest,
        )
    if best == 0:
        return known
    behind = took * samples[best].ratio(samples[0]) if 0 in calls else 0.0
    return known._replace(predicted=label(offers[0]), predicted_seconds=behind)


def _next(bound: Callable[..., None], turns: Iterator[tuple[int, int, int]]) -> None:
    bound(next(turns))


@contextmanager
def _matrices(problem: GemmProblem, device: int) -> Iterator[list[tuple[int, int, int]]]:
    """Give the addresses of A, B and C of each copy, aligned as the problem's are and no more."""
    from cute_gemm.run import memory

    random = np.random.default_rng(0)
    with ExitStack() as stack:
        places: list[list[int]] = []
        for matrix in (problem.A, problem.B, problem.C):
            offset = (matrix.first_alignment or matrix.alignment) % ALIGNMENT
            values = _values(matrix, offset, random)
            places.append([
                stack.enter_context(memory.upload(values, device)).pointer + offset
                for _ in range(copies_past_l2(problem, l2_bytes(device)))
            ])  # fmt: skip
        try:
            yield list(zip(*places, strict=True))
        except LaunchError:  # after which memory cannot be freed either
            stack.pop_all()
            raise


def _values(matrix: Matrix, offset: int, random: np.random.Generator) -> np.ndarray:
    """Return random numbers for all bytes that a matrix spans, and so many before it."""
    count = -(-(matrix.span + offset) // matrix.element.bytes)
    some = random_values(random, (min(count, _NUMBERS),), matrix.dtype)
    return np.resize(some, (count, 1))
