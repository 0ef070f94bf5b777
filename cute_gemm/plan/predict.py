"""Predictions for configs on a problem: seconds, slices of K, and corrections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.cost_model.calibrated import calibration, correction
from cute_gemm.cost_model.calibration import REFERENCE
from cute_gemm.cost_model.correction import correct_least
from cute_gemm.cost_model.prediction import Extents, Prediction, Predictions
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.errors import UnsupportedError
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels.auxiliary import REDUCE, packer
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.kernels.summation import OrderOfSummation
from cute_gemm.plan.steps import reduces
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.parts.packing import Algorithm, Packing, packed
from cute_gemm.problem.parts.slices import sliced_class

if TYPE_CHECKING:
    from collections.abc import Collection

    from cute_gemm.access.ideal import Kind
    from cute_gemm.cost_model.calibration import Constants
    from cute_gemm.kernels.base import CompiledKernel, Kernel
    from cute_gemm.kernels.candidate import Measured
    from cute_gemm.problem.problem import GemmProblem


class LegalConfigs(NamedTuple):
    """Legal configs of a class of problems by algorithm, with their predictions if any.

    The first ``whole`` have K in one piece. In the algorithms of the rest a ``split_k`` of 0 stands
    for the number of slices of the call. ``packs``: index of each config's ``pack`` in the
    packs of the search space; ``reduced``: whether, with K in one piece, the reduction kernel
    takes the pairs of columns of the epilogue.
    """

    configs: list[tuple[Kernel, Any, Algorithm]]
    predictions: Predictions | None
    whole: int
    packs: np.ndarray
    reduced: np.ndarray


class Predicted:
    """Predicted seconds of a class's configs on a problem, each with its best number of slices.

    ``packings``: the packing of each of the ``packs``; ``splits``: numbers of slices to try.
    """

    def __init__(
        self, problem: GemmProblem, legal: LegalConfigs, packings: dict[str, Packing],
        packs: tuple[str, ...], splits: tuple[int, ...], gpu: Gpu,
    ) -> None:  # fmt: skip
        assert legal.predictions is not None
        self._legal, self._gpu = legal, gpu
        constants = calibration(gpu).constants
        self._correction = correction(gpu, problem)
        #: Factors of the correction in the seconds, by index.
        self.factors: dict[int, float] = {}
        self._packing = {
            pack: packer(packing).seconds(packing, gpu, constants)
            for pack, packing in packings.items()
        }
        self._extents = extents = Extents.of(problem)
        #: Numbers of slices; seconds of the reduction for each; seconds of each config with it.
        self._counts = np.array((1, *splits))
        self._reduction = np.zeros((len(self._counts), 1))
        if splits:
            self._reduction[1:] = REDUCE.seconds(problem, self._counts[1:, None], gpu, constants)
        self._times = legal.predictions.times(extents, self._counts[:, None] if splits else 1)
        self._each = self._times.seconds + self._reduction
        if problem.epilogue.pairs:
            self._pairing = REDUCE.seconds(problem, 1, gpu, constants)
            self._each[0] += legal.reduced * self._pairing
        #: Index of the best number of slices for each config.
        self._best = np.zeros(len(legal.configs), int)
        self.seconds = self._each[0]
        if splits:
            self._best[legal.whole :] = 1 + self._each[1:, legal.whole :].argmin(axis=0)
            self.seconds = self._each[self._best, np.arange(len(self._best))]
        #: Seconds of packing, for each config.
        self._before: np.ndarray | float = 0.0
        if packings:
            before = np.array([self._packing.get(pack, 0.0) for pack in packs])
            self._before = before[legal.packs]
        self.seconds = self.seconds + self._before

        #: Indices of the candidates.
        self.kept: Sequence[int] = range(len(legal.configs))

    def by_order(self, problem: GemmProblem) -> dict[OrderOfSummation, float]:
        """Return the least seconds of each order of summation that is independent of m."""
        alike: dict[tuple[str, str, int], list[int]] = {}
        for index, (kernel, config, _) in enumerate(self._legal.configs):
            if kernel.batch_invariant:
                group = kernel.name, kernel.summation(config), config.tile[2]
                alike.setdefault(group, []).append(index)
        # Infinity where a config has another number of slices.
        each, whole = self._each + self._before, self._legal.whole
        each[1:, :whole] = each[0, whole:] = np.inf
        fastest: dict[OrderOfSummation, float] = {}
        for group, indices in alike.items():
            for count, seconds in zip(self._counts.tolist(), each, strict=True):
                least = float(seconds[indices].min())
                order = OrderOfSummation.by(*group, problem, count)
                if least < fastest.get(order, np.inf):
                    fastest[order] = least
        return fastest

    def keep(self, order: OrderOfSummation, problem: GemmProblem, for_all_m: bool) -> None:
        """Drop configs with another order of summation; with ``for_all_m`` orders of this m too."""
        kept = []
        for index, (kernel, config, _) in enumerate(self._legal.configs):
            if not for_all_m and index >= self._legal.whole:
                self._slice_by(order, problem, index)
            own = OrderOfSummation.of(kernel, config, problem, self.algorithm(index)[0])
            if (kernel.batch_invariant or not for_all_m) and own == order:
                kept.append(index)
            else:
                self.seconds[index] = np.inf
        if not kept and not for_all_m:
            raise UnsupportedError(
                f"order_of_summation= came with {problem.spelled} and options for which no config "
                f"has the order {order}: expected that of a plan for these A and B, on this GPU"
            )
        if not kept:
            raise UnsupportedError(
                f"batch_invariant=True came with {problem.spelled} and options for which no config "
                f"has the order of every other m, {order}: leave out pack and the options of the "
                "kernel, or batch_invariant"
            )
        self.kept = kept

    def _slice_by(self, order: OrderOfSummation, problem: GemmProblem, index: int) -> None:
        """Cut K as an order does, in the fastest number of slices that gives the order."""
        kernel, config, algorithm = self._legal.configs[index]
        for at in 1 + self._each[1:, index].argsort():
            cut = algorithm._replace(split_k=int(self._counts[at]))
            if OrderOfSummation.of(kernel, config, problem, cut) == order:
                own = self.seconds[index] - self._each[self._best[index], index]
                self._best[index], self.seconds[index] = at, self._each[at, index] + own
                return

    def correct(self) -> None:
        """Correct the least seconds by times that were measured on this GPU."""
        trees = self._correction
        if trees is not None:
            self.factors = correct_least(
                self.seconds, lambda least: trees.factors(self._features(least))
            )

    def _features(self, least: np.ndarray) -> np.ndarray:
        """Return the features of the configs at these indices for the correction."""
        best = self._best[least]
        predictions, slices = self._legal.predictions, self._counts[best]
        assert predictions is not None
        times = self._times.at(best, least)
        return predictions.features(self._extents, slices, times, least)

    def candidate(self, problem: GemmProblem, index: int, reads_c: bool = False) -> Candidate:
        """Return a config with its prediction and algorithm; ``reads_c``: beta is not 0."""
        kernel, config, _ = self._legal.configs[index]
        algorithm, auxiliary = self.algorithm(index)
        assert self._legal.predictions is not None
        if reads_c:
            prediction = prediction_of(
                problem, kernel.compiled(), config, algorithm, self._gpu, reads_c
            )
        else:
            prediction = self._legal.predictions.predict(
                problem, index, algorithm.split_k
            ).with_auxiliary(auxiliary)
        prediction = prediction.corrected(self.factors.get(index, 1.0))
        least = least_seconds(self._gpu, problem, reads_c)
        return Candidate(kernel, config, prediction.bounded(least), algorithm)

    def find(self, measured: Measured) -> int | None:
        """Return the index of a measured config, None if it is no longer a candidate."""
        for index in self.kept:
            kernel, config, _ = self._legal.configs[index]
            if measured.names(kernel.name, config.name, self.algorithm(index)[0]):
                return index
        return None

    def algorithm(self, index: int) -> tuple[Algorithm, dict[str, float]]:
        """Return the algorithm of a config, and the seconds of its auxiliary kernels."""
        algorithm = self._legal.configs[index][2]
        auxiliary = {"packing": self._packing[algorithm.pack]} if algorithm.pack else {}
        if not algorithm.split_k:
            best = self._best[index]
            algorithm = algorithm._replace(split_k=int(self._counts[best]))
            auxiliary["reduction"] = float(self._reduction[best, 0])
        elif self._legal.reduced[index]:
            auxiliary["reduction"] = self._pairing
        return algorithm, auxiliary


def prediction_of(
    problem: GemmProblem, kernel: CompiledKernel, config: Any, algorithm: Algorithm, gpu: Gpu,
    reads_c: bool = False, ideal: frozenset[Kind] = frozenset(), wide: Collection[str] = (),
) -> Prediction:  # fmt: skip
    """Return the prediction of one config with all its launches, uncorrected and unbounded.

    ``reads_c``: whether beta is not 0; ``ideal``: accesses of the kernel that are counted as
    ideal; ``wide``: names of auxiliary kernels (``"reduce"``) all of whose accesses are counted
    as 16 bytes wide.
    """
    constants = calibration(gpu).constants

    def of(name: str) -> Constants:
        return constants._replace(narrow_part=1.0) if name in wide else constants

    main, auxiliary = problem, dict[str, float]()
    if algorithm.pack:
        main, packing = packed(problem, algorithm.pack)
        packs = packer(packing)
        auxiliary["packing"] = packs.seconds(packing, gpu, of(packs.name))
    reduced = reduces(config, problem, algorithm)
    if reduced:
        main = sliced_class(main, algorithm.split_k)
        seconds = REDUCE.seconds(problem, algorithm.split_k, gpu, of(REDUCE.name), reads_c)
        auxiliary["reduction"] = float(seconds)
    reads = reads_c and not reduced
    cost = kernel.footprint(config, main, gpu, ideal, reads)
    return (
        Predictions([cost], gpu)
        .predict(problem, 0, algorithm.split_k, reads)
        .with_auxiliary(auxiliary)
    )


def unmeasured(
    gpu: Gpu, problem: GemmProblem, kernel: CompiledKernel, config: Any, reads_c: bool = False
) -> list[str]:
    """Return the parts of a prediction that no measured times support, [] if there are none.

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
