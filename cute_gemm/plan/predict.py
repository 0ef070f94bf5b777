"""What is predicted of configs on a problem: seconds, slices of K, and corrections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.cost_model.calibrated import calibration, correction
from cute_gemm.cost_model.calibration import REFERENCE
from cute_gemm.cost_model.correction import correct_least
from cute_gemm.cost_model.price import Extents, Price, Prices
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.errors import UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.kernels.order import OrderOfSums
from cute_gemm.kernels.passes import REDUCE, packer
from cute_gemm.plan.steps import reduces
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.parts.packing import Packing, Route, packed
from cute_gemm.problem.parts.slices import sliced_class

if TYPE_CHECKING:
    from collections.abc import Collection

    from cute_gemm.access.ideal import Kind
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.kernels.base import CompiledKernel, Kernel
    from cute_gemm.kernels.candidate import Measured
    from cute_gemm.problem.problem import GemmProblem


class Shelf(NamedTuple):
    """Legal configs of a class of problems by route, and their prices if they have any.

    The first ``whole`` have K in one piece; of the routes of the others the ``split_k`` of 0 stands
    for the number of slices of the call. ``packs``: index of each config's ``pack`` in the packs of
    the search space; ``reduced``: whether, with K in one piece, a launch behind the kernel takes
    the pairs of columns of the epilogue.
    """

    offers: list[tuple[Kernel, Any, Route]]
    prices: Prices | None
    whole: int
    packs: np.ndarray
    reduced: np.ndarray


class Predicted:
    """Predicted seconds of a shelf's configs on a problem, each with its best number of slices.

    ``packings``: what each of the ``packs`` copies; ``splits``: numbers of slices to try.
    """

    def __init__(
        self, problem: GemmProblem, shelf: Shelf, packings: dict[str, Packing],
        packs: tuple[str, ...], splits: tuple[int, ...], gpu: Gpu,
    ) -> None:  # fmt: skip
        assert shelf.prices is not None
        self._shelf, self._gpu = shelf, gpu
        constants = calibration(gpu).constants
        self._correction = correction(gpu, problem)
        #: By index, the factors of the correction in the seconds.
        self.factors: dict[int, float] = {}
        self._packing = {
            pack: packer(packing).seconds(packing, gpu, constants)
            for pack, packing in packings.items()
        }
        self._extents = extents = Extents.of(problem)
        #: Numbers of slices; for each the seconds behind the kernel, and of each config with them.
        self._counts = np.array((1, *splits))
        self._behind = np.zeros((len(self._counts), 1))
        if splits:
            self._behind[1:] = REDUCE.seconds(problem, self._counts[1:, None], gpu, constants)
        self._times = shelf.prices.times(extents, self._counts[:, None] if splits else 1)
        self._each = self._times.seconds + self._behind
        if problem.epilogue.pairs:
            self._pairing = REDUCE.seconds(problem, 1, gpu, constants)
            self._each[0] += shelf.reduced * self._pairing
        #: Which of the numbers of slices is best, for each config.
        self._best = np.zeros(len(shelf.offers), int)
        self.seconds = self._each[0]
        if splits:
            self._best[shelf.whole :] = 1 + self._each[1:, shelf.whole :].argmin(axis=0)
            self.seconds = self._each[self._best, np.arange(len(self._best))]
        #: Seconds of packing, for each config.
        self._before: np.ndarray | float = 0.0
        if packings:
            before = np.array([self._packing.get(pack, 0.0) for pack in packs])
            self._before = before[shelf.packs]
        self.seconds = self.seconds + self._before

        #: Indices of the configs to choose from.
        self.kept: Sequence[int] = range(len(shelf.offers))

    def by_order(self, problem: GemmProblem) -> dict[OrderOfSums, float]:
        """Return the least seconds of each order of sums that does not depend on m."""
        alike: dict[tuple[str, str, int], list[int]] = {}
        for index, (kernel, config, _) in enumerate(self._shelf.offers):
            if kernel.batch_invariant:
                group = kernel.name, kernel.sums(config), config.tile[2]
                alike.setdefault(group, []).append(index)
        # Infinity where a config has another number of slices.
        each, whole = self._each + self._before, self._shelf.whole
        each[1:, :whole] = each[0, whole:] = np.inf
        fastest: dict[OrderOfSums, float] = {}
        for group, indices in alike.items():
            for count, seconds in zip(self._counts.tolist(), each, strict=True):
                least = float(seconds[indices].min())
                order = OrderOfSums.by(*group, problem, count)
                if least < fastest.get(order, np.inf):
                    fastest[order] = least
        return fastest

    def keep(self, order: OrderOfSums, problem: GemmProblem, for_all_m: bool) -> None:
        """Leave out the configs with another order of sums; ``for_all_m``: or one of this m."""
        kept = []
        for index, (kernel, config, _) in enumerate(self._shelf.offers):
            if not for_all_m and index >= self._shelf.whole:
                self._slice_by(order, problem, index)
            own = OrderOfSums.of(kernel, config, problem, self.route(index)[0])
            if (kernel.batch_invariant or not for_all_m) and own == order:
                kept.append(index)
            else:
                self.seconds[index] = np.inf
        if not kept and not for_all_m:
            raise UnsupportedError(
                f"order_of_sums= came with {problem.spelled} and options of which no config sums "
                f"by {order}: expected that of a plan for these A and B, on this GPU"
            )
        if not kept:
            raise UnsupportedError(
                f"batch_invariant=True came with {problem.spelled} and options of which no config "
                f"sums as every other m does, by {order}: leave out pack and the options of the "
                "kernel, or batch_invariant"
            )
        self.kept = kept

    def _slice_by(self, order: OrderOfSums, problem: GemmProblem, index: int) -> None:
        """Cut K as an order does, by the fastest number of slices that gives its own."""
        kernel, config, route = self._shelf.offers[index]
        for at in 1 + self._each[1:, index].argsort():
            cut = route._replace(split_k=int(self._counts[at]))
            if OrderOfSums.of(kernel, config, problem, cut) == order:
                own = self.seconds[index] - self._each[self._best[index], index]
                self._best[index], self.seconds[index] = at, self._each[at, index] + own
                return

    def correct(self) -> None:
        """Correct the least seconds by what times say that were measured on this GPU."""
        trees = self._correction
        if trees is not None:
            self.factors = correct_least(
                self.seconds, lambda least: trees.factors(self._features(least))
            )

    def _features(self, least: np.ndarray) -> np.ndarray:
        """Return what the correction of the configs at these indices depends on."""
        best = self._best[least]
        prices, slices = self._shelf.prices, self._counts[best]
        assert prices is not None
        times = self._times.at(best, least)
        return prices.features(self._extents, slices, times, least)

    def candidate(self, problem: GemmProblem, index: int, reads_c: bool = False) -> Candidate:
        """Return a config with its price and its route; ``reads_c``: of a beta that is not 0."""
        kernel, config, _ = self._shelf.offers[index]
        route, passes = self.route(index)
        assert self._shelf.prices is not None
        if reads_c:
            price = priced(problem, kernel.compiled(), config, route, self._gpu, reads_c)
        else:
            price = self._shelf.prices.price(problem, index, route.split_k).behind(passes)
        price = price.corrected(self.factors.get(index, 1.0))
        least = least_seconds(self._gpu, problem, reads_c)
        return Candidate(kernel, config, price.bounded(least), route)

    def find(self, measured: Measured) -> int | None:
        """Return the index of the config that was measured; None if it is no candidate any more."""
        for index in self.kept:
            kernel, config, _ = self._shelf.offers[index]
            if measured.names(kernel.name, config.name, self.route(index)[0]):
                return index
        return None

    def route(self, index: int) -> tuple[Route, dict[str, float]]:
        """Return the route of a config, and the seconds of its passes."""
        route = self._shelf.offers[index][2]
        passes = {"packing": self._packing[route.pack]} if route.pack else {}
        if not route.split_k:
            best = self._best[index]
            route = route._replace(split_k=int(self._counts[best]))
            passes["reduction"] = float(self._behind[best, 0])
        elif self._shelf.reduced[index]:
            passes["reduction"] = self._pairing
        return route, passes


def priced(
    problem: GemmProblem, kernel: CompiledKernel, config: Any, route: Route, gpu: Gpu,
    reads_c: bool = False, ideal: frozenset[Kind] = frozenset(), wide: Collection[str] = (),
) -> Price:  # fmt: skip
    """Return the price of one config with all its launches, not corrected and not bounded.

    ``reads_c``: whether beta is not 0; ``ideal``: accesses of the kernel that are counted as if
    they were ideal; ``wide``: names of launches beside it (``"reduce"``) all of whose accesses are
    taken to be of 16 bytes.
    """
    constants = calibration(gpu).constants

    def of(name: str) -> Constants:
        return constants._replace(narrow_part=1.0) if name in wide else constants

    main, passes = problem, dict[str, float]()
    if route.pack:
        main, packing = packed(problem, route.pack)
        packs = packer(packing)
        passes["packing"] = packs.seconds(packing, gpu, of(packs.name))
    reduced = reduces(config, problem, route)
    if reduced:
        main = sliced_class(main, route.split_k)
        seconds = REDUCE.seconds(problem, route.split_k, gpu, of(REDUCE.name), reads_c)
        passes["reduction"] = float(seconds)
    reads = reads_c and not reduced
    cost = kernel.footprint(config, main, gpu, ideal, reads)
    return Prices([cost], gpu).price(problem, 0, route.split_k, reads).behind(passes)


def unmeasured(
    gpu: Gpu, problem: GemmProblem, kernel: CompiledKernel, config: Any, reads_c: bool = False
) -> list[str]:
    """Return what of a prediction no measured times stand behind; [] where they do.

    ``reads_c``: whether beta is not 0.

    Examples
    --------
    >>> from cute_gemm import plan
    >>> p = plan("TN", m=64, n=64, k=64, dtype="float32", gpu="H200", kernel="naive")
    >>> unmeasured(p.gpu, p.problem, p._kernel, p.config)
    ["kernel 'naive' with these types"]
    """
    numbers = calibration(gpu)
    missing = [] if numbers.gpu == gpu.name else [f"the {gpu.name}"]
    if not set(numbers.bases.get(kernel.name, ())) & set(kernel.kinds(config)[:1]):
        missing.append(f"kernel {kernel.name!r} with these types")
    if problem.groups:
        missing.append("groups")
    if problem.scales and gpu.name != REFERENCE:
        missing.append("block scales")
    if problem.epilogue != LINEAR_COMBINATION:
        missing.append("this epilogue")
    if reads_c:
        missing.append("another beta than 0")
    return missing
