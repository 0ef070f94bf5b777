"""The numbers of prices, fitted to measured times by least squares of logarithms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.calibrate.times import Contest
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.kernels.passes import REDUCE, packer
from cute_gemm.model.calibration import Basis, Calibration, Constants, Pace
from cute_gemm.model.price import Counts, Extents, Prices, footprint
from cute_gemm.problem.passes import Packing, packed
from cute_gemm.problem.problem import GemmProblem
from cute_gemm.select import sliced_class

#: An error of this part of a time weighs as much as a number that is so many times the one it
#: began with: numbers that no time depends on stay as they are.
_ERROR, _MOVED = 0.08, 3.0
#: Fewest times of a kernel and type that its pace is fitted to.
_LEAST = 12
#: Turns of fitting paces, factors and constants, and digits of the numbers.
_TURNS, _DIGITS = 3, 4
#: Fields of a pace that are fitted, where they are not 0.
_FITTED = "slowdown", "latency", "serial", "dram", "passes", "start", "memory", "l2"


@dataclass(frozen=True)
class Sample:
    """A measured time, and what its prediction is computed from."""

    kernel: Any
    config: Any
    counts: Counts
    problem: GemmProblem
    packing: Packing | None
    slices: int
    seconds: float

    @property
    def kind(self) -> tuple[str, str]:
        """Kernel and type of the products, by which it has a pace."""
        return self.kernel.name, self.kernel.kinds(self.config)[0]


class Quality(NamedTuple):
    """How well a calibration predicts, and chooses.

    ``rms``: root of the mean squared error of times, as a part; ``regret``: by how much the configs
    that it chooses are slower than the fastest of those measured, on average, as a part; ``worst``:
    time of the fastest over that of the chosen one, the least.
    """

    rms: float
    regret: float
    worst: float


def samples(contests: Iterable[Contest], gpu: Gpu) -> list[list[Sample]]:
    """Return the samples of each contest, without configs that there are no more."""
    return [_samples(contest, gpu) for contest in contests]


def _samples(contest: Contest, gpu: Gpu) -> list[Sample]:
    found = []
    whole = contest.plan(gpu).problem
    for entry, candidate in contest.candidates(gpu).items():
        problem, packing = packed(whole, entry.pack) if entry.pack else (whole, None)
        main = sliced_class(problem, entry.split_k) if entry.split_k > 1 else problem
        kernel = candidate.kernel.compiled()
        counts = kernel.counts(candidate.config, main, gpu)
        seconds = entry.microseconds * 1e-6
        found.append(
            Sample(kernel, candidate.config, counts, whole, packing, entry.split_k, seconds)
        )
    return found


def predicted(of: Sequence[Sample], calibration: Calibration, gpu: Gpu) -> np.ndarray:
    """Return the seconds that a calibration predicts of each sample."""
    constants, paces, costs = calibration.constants, {}, []
    for sample in of:
        key = sample.kernel.name, sample.config
        if key not in paces:
            paces[key] = sample.kernel.pace(sample.config, calibration)
        costs.append(footprint(sample.counts, paces[key], constants, gpu))
    each = np.array([Extents.of(sample.problem)[:5] for sample in of], float)
    extents = Extents(*each.T[:5])
    slices = np.array([sample.slices for sample in of], float)
    main = Prices(costs, gpu).of_each(extents, slices)
    return main + [_passes(sample, constants, gpu) for sample in of]


def _passes(sample: Sample, constants: Constants, gpu: Gpu) -> float:
    """Return the seconds before and behind the kernel."""
    seconds = 0.0
    if sample.packing is not None:
        seconds += packer(sample.packing).seconds(sample.packing, gpu, constants)
    if sample.slices > 1:
        seconds += float(REDUCE.seconds(sample.problem, sample.slices, gpu, constants))
    return seconds


def quality(contests: Sequence[Sequence[Sample]], calibration: Calibration, gpu: Gpu) -> Quality:
    """Return how well a calibration predicts these contests, and chooses in each."""
    flat = [sample for contest in contests for sample in contest]
    if not flat:
        return Quality(0.0, 0.0, 1.0)
    said = predicted(flat, calibration, gpu)
    real = np.array([sample.seconds for sample in flat])
    errors, losses, begin = np.log(said / real), [], 0
    for contest in contests:
        part = slice(begin, begin := begin + len(contest))
        if len(contest) > 1:
            losses.append(real[part][said[part].argmin()] / real[part].min())
    mean, worst = (float(np.mean(losses)), max(losses)) if losses else (1.0, 1.0)
    return Quality(float(np.sqrt(np.mean(errors**2))), mean - 1, float(1 / worst))


class _Block(NamedTuple):
    """Numbers that are fitted together: the samples that depend on them, and how they are set."""

    samples: list[Sample]
    start: dict[str, float]
    put: Callable[[Calibration, dict[str, float]], Calibration]


def fitted(
    contests: Sequence[Sequence[Sample]], start: Calibration, gpu: Gpu, source: str,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Calibration:  # fmt: skip
    """Return the numbers that predict these times best, from those of another calibration on.

    Paces, each kernel's factors and the constants are fitted in turn. Of a kernel and type with
    fewer than 12 times the pace stays.
    """
    flat = [sample for contest in contests for sample in contest]
    now = replace(start, gpu=gpu.name, source=source, bases={})
    total, done = 0, 0
    for _ in range(_TURNS):
        blocks = _blocks(flat, now)
        total = total or _TURNS * len(blocks)
        for block in blocks:
            now = _improved(block, now, gpu)
            done += 1
            tell("fit", done, total)
    bases: dict[str, dict[str, Basis]] = {}
    for (kernel, kind), of in _grouped(flat).items():
        rms = quality([of], now, gpu).rms
        bases.setdefault(kernel, {})[kind] = Basis(len(of), _rounded(rms, 3))
    return replace(now, bases=bases)


def _grouped(flat: Sequence[Sample]) -> dict[tuple[str, str], list[Sample]]:
    """Return the samples of each kernel and type of which there are enough."""
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in flat:
        groups.setdefault(sample.kind, []).append(sample)
    return {kind: of for kind, of in sorted(groups.items()) if len(of) >= _LEAST}


def _blocks(flat: list[Sample], now: Calibration) -> list[_Block]:
    blocks = []
    groups = _grouped(flat)
    for (kernel, kind), of in groups.items():
        own = now.pace(kernel, *of[0].kernel.kinds(of[0].config)) or Pace()
        values = {name: float(getattr(own, name)) for name in _FITTED if getattr(own, name)}
        blocks.append(_Block(of, values, _put_pace(kernel, kind, own)))
    for kernel, factors in now.factors.items():
        of = [sample for sample in flat if sample.kernel.name == kernel]
        if len(of) >= _LEAST:
            blocks.append(_Block(of, dict(factors), _put_factors(kernel)))
    if len(flat) >= _LEAST:
        blocks.append(_Block(flat, now.constants._asdict(), _put_constants))
    return blocks


def _put_pace(
    kernel: str, kind: str, own: Pace
) -> Callable[[Calibration, dict[str, float]], Calibration]:
    def put(calibration: Calibration, values: dict[str, float]) -> Calibration:
        rows = {**calibration.paces.get(kernel, {}), kind: Pace(**(own._asdict() | values))}
        return replace(calibration, paces={**calibration.paces, kernel: rows})

    return put


def _put_factors(kernel: str) -> Callable[[Calibration, dict[str, float]], Calibration]:
    def put(calibration: Calibration, values: dict[str, float]) -> Calibration:
        return replace(calibration, factors={**calibration.factors, kernel: values})

    return put


def _put_constants(calibration: Calibration, values: dict[str, float]) -> Calibration:
    return replace(calibration, constants=Constants(**values))


def _improved(block: _Block, now: Calibration, gpu: Gpu) -> Calibration:
    """Return a calibration with the numbers of a block that predict its samples best."""
    from scipy.optimize import least_squares

    names, before = list(block.start), np.array(list(block.start.values()))
    real = np.array([sample.seconds for sample in block.samples])

    def at(steps: np.ndarray) -> Calibration:
        values = (_rounded(x) for x in before * np.exp(steps))
        return block.put(now, dict(zip(names, values, strict=True)))

    def errors(steps: np.ndarray) -> np.ndarray:
        exact = dict(zip(names, map(float, before * np.exp(steps)), strict=True))
        said = predicted(block.samples, block.put(now, exact), gpu)
        return np.append(np.log(said / real) / _ERROR, steps / math.log(_MOVED))

    # Few large errors, as of a kernel that spills, do not decide.
    found = least_squares(
        errors, np.zeros(len(names)), loss="soft_l1", bounds=(-3.0, 3.0), diff_step=1e-4,
        max_nfev=20,
    )  # fmt: skip
    return at(found.x)


def _rounded(value: float, digits: int = _DIGITS) -> float:
    return float(f"{value:.{digits}g}")
