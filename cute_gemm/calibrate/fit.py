"""The constants of the cost model, fitted to measured times: least squares of logarithms.

Trees correct the remaining errors (`model.correction`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.calibrate.boost import boosted
from cute_gemm.calibrate.times import Contest, Entry
from cute_gemm.cost_model.calibration import Basis, Calibration, Constants, Pace
from cute_gemm.cost_model.correction import Correction, Tree
from cute_gemm.cost_model.footprint import Counts, footprint
from cute_gemm.cost_model.prediction import Extents, Predictions, Times
from cute_gemm.cost_model.roofline import least_seconds
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels.auxiliary import REDUCE, packer
from cute_gemm.kernels.candidate import Candidate
from cute_gemm.problem.parts.packing import Packing, packed
from cute_gemm.problem.parts.slices import sliced_class
from cute_gemm.problem.problem import GemmProblem

#: This relative error of a time weighs as much as a number so many times its initial value:
#: numbers that no time depends on stay unchanged.
_ERROR, _MOVED = 0.08, 3.0
#: Fewest times of a kernel and type to fit its pace, steps of the fit, and digits of the
#: numbers.
_LEAST, _STEPS, _DIGITS = 12, 15, 4
#: Approximate number of predictions in a fit, most of them for derivatives.
_CALLS = 32 * _STEPS
#: How far the logarithm of a number may move. A fraction of a bandwidth is 1 at most, and where it
#: is that already, the fit begins so far below: from a bound it takes no steps.
_MOST, _FRACTIONS, _INSIDE = 3.0, ("dram",), 0.05
#: Constants that are not fitted, since few drawn problems depend on them: C larger than L2, and
#: auxiliary kernels with narrow accesses.
_KEPT = "partial", "narrow_part"
#: Problems for each tree of a correction, and most trees.
_PROBLEMS, _TREES = 8, 200
#: Weight of a problem's times together, of which the fastest have most, and how many times as much
#: those of layers of models have: products of 2-byte types, two extents of which are multiples of
#: 128.
_WEIGHT, _MORE, _HIDDEN = 10.0, 4.0, 128
#: Fields of a pace that are fitted if they are not 0.
_FITTED = "slowdown", "latency", "serial", "dram", "passes", "start", "memory", "l2"


@dataclass(frozen=True)
class Sample:
    """A measured time, and the inputs of its prediction."""

    kernel: Any
    config: Any
    counts: Counts
    problem: GemmProblem
    packing: Packing | None
    slices: int
    seconds: float

    @property
    def kind(self) -> tuple[str, str]:
        """Kernel and type of the products, which share a pace."""
        return self.kernel.name, self.kernel.kinds(self.config)[0]


class Quality(NamedTuple):
    """The accuracy of a calibration's predictions and selections.

    ``rms``: root of the mean squared relative error of times; ``regret``: average relative
    slowdown of the selected configs against the fastest measured ones; ``worst``:
    the least ratio of the time of the fastest to that of the selected config.
    """

    rms: float
    regret: float
    worst: float


def samples(contests: Iterable[Contest], gpu: Gpu) -> list[list[Sample]]:
    """Return the samples of each contest, without configs that no longer exist."""
    return [
        [_sample(entry, x, whole, gpu) for entry, x in contest.candidates(gpu).items()]
        for contest in contests
        for whole in [contest.plan(gpu).problem]
    ]


def _sample(entry: Entry, candidate: Candidate, whole: GemmProblem, gpu: Gpu) -> Sample:
    problem, packing = packed(whole, entry.pack) if entry.pack else (whole, None)
    main = sliced_class(problem, entry.split_k) if entry.split_k > 1 else problem
    kernel, config = candidate.kernel.compiled(), candidate.config
    counts, seconds = kernel.counts(config, main, gpu), entry.microseconds * 1e-6
    return Sample(kernel, config, counts, whole, packing, entry.split_k, seconds)


class SampleSet:
    """Contests on a GPU, with data that stays fixed in a fit: extents, and equal footprints.

    Samples of one config and the same counts have one footprint.
    """

    def __init__(self, contests: Sequence[Sequence[Sample]], gpu: Gpu) -> None:
        self.gpu = gpu
        self.samples = of = [sample for contest in contests for sample in contest]
        self.real = np.array([sample.seconds for sample in of])
        lengths = [len(contest) for contest in contests]
        fastest = [min((x.seconds for x in contest), default=0.0) for contest in contests]
        #: The least time of a contest over each time: slow configs count less.
        self.weights = np.repeat(fastest, lengths) / self.real
        #: Contest of each sample.
        self.contest = np.repeat(range(len(contests)), lengths)
        each = np.array([Extents.of(sample.problem)[:5] for sample in of], float).reshape(-1, 5)
        self.extents = Extents(*each.T)
        #: Whether the sample is of a layer of a model.
        self.layers = (np.count_nonzero(each[:, :3] % _HIDDEN == 0, axis=1) > 1) & (
            np.array([sample.problem.A.element.bytes for sample in of]) == 2
        )
        self.slices = np.array([sample.slices for sample in of], float)
        least = {id(x.problem): least_seconds(gpu, x.problem) for x in of}
        self.least = np.array([least[id(x.problem)] for x in of])
        twins: dict[Any, int] = {}
        self.twin = [
            twins.setdefault((sample.kernel.name, sample.config, sample.counts), len(twins))
            for sample in of
        ]
        firsts = dict(zip(self.twin[::-1], of[::-1], strict=True))
        self.unlike = [firsts[place] for place in range(len(twins))]
        self._auxiliary: tuple[Constants, np.ndarray] | None = None

    def predicted(self, calibration: Calibration) -> np.ndarray:
        """Return the seconds that a calibration predicts for each sample."""
        predictions, times, seconds = self._predicted(calibration)
        if calibration.correction is not None:
            features = predictions.features(self.extents, self.slices, times)
            seconds = seconds * calibration.correction.factors(features)
        return np.maximum(seconds, self.least)

    def _predicted(self, calibration: Calibration) -> tuple[Predictions, Times, np.ndarray]:
        """Return predictions, times, and seconds with auxiliary kernels, all uncorrected."""
        constants, gpu = calibration.constants, self.gpu
        footprints = [
            footprint(x.counts, x.kernel.pace(x.config, calibration), constants, gpu)
            for x in self.unlike
        ]
        predictions = Predictions(footprints, gpu).of(self.twin)
        times = predictions.times(self.extents, self.slices)
        if self._auxiliary is None or self._auxiliary[0] != constants:
            auxiliary = [_auxiliary(sample, constants, gpu) for sample in self.samples]
            self._auxiliary = constants, np.array(auxiliary)
        return predictions, times, times.seconds + self._auxiliary[1]

    def corrected(self, calibration: Calibration) -> Calibration:
        """Return a calibration with further trees for the remaining errors."""
        predictions, times, seconds = self._predicted(calibration)
        features = predictions.features(self.extents, self.slices, times)
        trees: tuple[Tree, ...] = ()
        if calibration.correction is not None:
            trees = calibration.correction.trees
            seconds = seconds * calibration.correction.factors(features)
        weights = self.weights**2
        each = np.bincount(self.contest, weights)
        weights = weights * np.where(self.layers, _MORE, 1.0) * (_WEIGHT / each)[self.contest]
        count = min(_TREES, (self.contest[-1] + 1) // _PROBLEMS)
        trees = *trees, *boosted(features, np.log(self.real / seconds), weights, count)
        return replace(calibration, correction=Correction(trees) if trees else None)


def _auxiliary(sample: Sample, constants: Constants, gpu: Gpu) -> float:
    """Return the seconds of the auxiliary kernels."""
    seconds = 0.0
    if sample.packing is not None:
        seconds += packer(sample.packing).seconds(sample.packing, gpu, constants)
    if sample.slices > 1:
        seconds += float(REDUCE.seconds(sample.problem, sample.slices, gpu, constants))
    return seconds


def quality(contests: Sequence[Sequence[Sample]], calibration: Calibration, gpu: Gpu) -> Quality:
    """Return the accuracy of a calibration's predictions and selections in these contests."""
    known = SampleSet(contests, gpu)
    if not known.samples:
        return Quality(0.0, 0.0, 1.0)
    said, real = known.predicted(calibration), known.real
    errors, losses = np.log(said / real), []
    for place, contest in enumerate(contests):
        part = known.contest == place
        if len(contest) > 1:
            losses.append(real[part][said[part].argmin()] / real[part].min())
    mean, worst = (float(np.mean(losses)), max(losses)) if losses else (1.0, 1.0)
    return Quality(float(np.sqrt(np.mean(errors**2))), mean - 1, float(1 / worst))


class _Numbers(NamedTuple):
    """Numbers to fit: values, the samples that depend on them, and how to set them."""

    values: dict[str, float]
    samples: list[bool]
    put: Callable[[Calibration, dict[str, float]], Calibration]


def fitted(
    contests: Sequence[Sequence[Sample]], start: Calibration, gpu: Gpu, source: str,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Calibration:  # fmt: skip
    """Return the numbers that predict these times best, starting from another calibration.

    Paces, factors of kernels and constants are fitted together, with the other calibration's
    correction. A kernel and type with fewer than 12 times keeps its pace. Then trees extend the
    correction, a tree for 8 problems, 200 at most.
    """
    known = SampleSet([contest for contest in contests if contest], gpu)
    begin = replace(start, gpu=gpu.name, source=source, bases={})
    every = _numbers(known.samples, begin)
    if not every:
        return begin
    now = known.corrected(_solved(known, every, begin, tell))
    bases: dict[str, dict[str, Basis]] = {}
    for (kernel, kind), of in _by_kernel(known.samples).items():
        rms = quality([of], now, gpu).rms
        bases.setdefault(kernel, {})[kind] = Basis(len(of), _rounded(rms, 3))
    return replace(now, bases=bases)


def _by_kernel(flat: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Return the samples of each kernel and type with enough of them."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in flat:
        groups.setdefault(sample.kind, []).append(sample)
    return {kind: of for kind, of in sorted(groups.items()) if len(of) >= _LEAST}


def _numbers(flat: Sequence[Sample], now: Calibration) -> list[_Numbers]:
    """Return the numbers to fit to these samples."""
    numbers = []
    for (kernel, kind), of in _by_kernel(flat).items():
        own = now.pace(kernel, *of[0].kernel.kinds(of[0].config)) or Pace()
        values = {name: float(getattr(own, name)) for name in _FITTED if getattr(own, name)}
        having = [sample.kind == (kernel, kind) for sample in flat]
        numbers.append(_Numbers(values, having, partial(_put_pace, kernel, kind, own)))
    for kernel, factors in now.factors.items():
        having = [sample.kernel.name == kernel for sample in flat]
        if sum(having) >= _LEAST:
            numbers.append(_Numbers(dict(factors), having, partial(_put_factors, kernel)))
    if len(flat) >= _LEAST:
        values = {name: x for name, x in now.constants._asdict().items() if name not in _KEPT}
        numbers.append(_Numbers(values, [True] * len(flat), _put_constants))
    return numbers


def _put_pace(
    kernel: str, kind: str, own: Pace, calibration: Calibration, values: dict[str, float]
) -> Calibration:
    rows = {**calibration.paces.get(kernel, {}), kind: Pace(**(own._asdict() | values))}
    return replace(calibration, paces={**calibration.paces, kernel: rows})


def _put_factors(kernel: str, calibration: Calibration, values: dict[str, float]) -> Calibration:
    return replace(calibration, factors={**calibration.factors, kernel: values})


def _put_constants(calibration: Calibration, values: dict[str, float]) -> Calibration:
    return replace(calibration, constants=calibration.constants._replace(**values))


def _solved(
    known: SampleSet, every: Sequence[_Numbers], begin: Calibration,
    tell: Callable[[str, int, int], None],
) -> Calibration:  # fmt: skip
    """Return a calibration with the numbers that predict the samples best."""
    from scipy.optimize import least_squares
    from scipy.sparse import csr_matrix, eye, vstack

    names = [name for numbers in every for name in numbers.values]
    before = np.array([value for numbers in every for value in numbers.values.values()])
    most = [
        -math.log(x) if name in _FRACTIONS else _MOST for name, x in zip(names, before, strict=True)
    ]
    logarithms, calls = np.log(known.real), itertools.count(1)

    def at(moved: np.ndarray, digits: int = 17) -> Calibration:
        values = iter([_rounded(x, digits) for x in before * np.exp(moved)])
        calibration = begin
        for numbers in every:
            calibration = numbers.put(calibration, {name: next(values) for name in numbers.values})
        return calibration

    def errors(moved: np.ndarray) -> np.ndarray:
        said = np.log(known.predicted(at(moved)))
        tell("fit", min(next(calls), _CALLS), _CALLS)
        return np.append(known.weights * (said - logarithms) / _ERROR, moved / math.log(_MOVED))

    # Numbers of other kernels and types have no sample in common: derivatives are had together.
    depends = np.array([numbers.samples for numbers in every for _ in numbers.values])
    sparsity = vstack([csr_matrix(depends.T), eye(len(before))])
    # A few large errors, as of a kernel that spills, must not decide.
    solution = least_squares(
        errors, np.minimum(0.0, np.array(most) - _INSIDE), loss="soft_l1", bounds=(-_MOST, most),
        diff_step=1e-4, max_nfev=_STEPS, jac_sparsity=sparsity, x_scale="jac",
    )  # fmt: skip
    return at(solution.x, _DIGITS)


def _rounded(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")
