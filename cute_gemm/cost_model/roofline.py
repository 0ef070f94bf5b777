"""Lower bound of a problem's time on a GPU, for any kernel: the roofline of its data sheet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class Roofline:
    """A problem on the roofline of a GPU.

    S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", CACM 52(4), 2009. Rates are in 10**12 operations and 10**9 bytes per
    second; ``unit`` computes the products; ``ridge``: operations per byte at which memory and
    compute take equally long; ``intensity``: operations per compulsory byte; the times are lower
    bounds for each.
    """

    peak_tflops: float
    unit: str
    bandwidth_gbs: float
    ridge: float
    intensity: float
    compute_seconds: float
    memory_seconds: float

    @property
    def bound(self) -> Literal["memory", "compute"]:
        """The longer of memory and compute."""
        return "memory" if self.memory_seconds > self.compute_seconds else "compute"

    @property
    def limit(self) -> str:
        """The bottleneck: ``"memory"``, or the unit that computes the products."""
        return self.unit if self.bound == "compute" else "memory"

    @property
    def seconds(self) -> float:
        """Lower bound of the time."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def attainable_tflops(self) -> float:
        """Upper bound of the rate, in 10**12 operations per second."""
        return min(self.peak_tflops, self.intensity * self.bandwidth_gbs / 1e3)


def compulsory_bytes(problem: GemmProblem, reads_c: bool) -> dict[str, int]:
    """Return the bytes of each matrix that every kernel must move."""
    moved = {matrix.name: matrix.nbytes for matrix in problem.matrices}
    return moved | {"C": moved["C"] * (1 + reads_c)}


def roofline(gpu: Gpu, problem: GemmProblem, reads_c: bool = False) -> Roofline | None:
    """Return the roofline of a problem on a GPU; None without a peak rate for its type."""
    peak, bandwidth = gpu.peak(problem.factor.name), gpu.bandwidth_gbs
    if peak is None:
        return None
    tflops = peak.tflops / problem.component_products
    compulsory = sum(compulsory_bytes(problem, reads_c).values())
    ridge, intensity = tflops * 1e3 / bandwidth, ratio(problem.flops, compulsory)
    times = problem.flops / (tflops * 1e12), compulsory / (bandwidth * 1e9)
    return Roofline(tflops, peak.unit, bandwidth, ridge, intensity, *times)


def least_seconds(gpu: Gpu, problem: GemmProblem, reads_c: bool = False) -> float:
    """Return the lower bound of all kernels' times, and of predicted times, in seconds.

    Without a peak rate for the types it is that of memory alone. ``reads_c``: whether beta is not
    0.
    """
    bound = roofline(gpu, problem, reads_c)
    if bound is not None:
        return bound.seconds
    return sum(compulsory_bytes(problem, reads_c).values()) / (gpu.bandwidth_gbs * 1e9)


def ratio(a: float, b: float) -> float:
    """Return a / b, or 0 if b is 0."""
    return a / b if b else 0.0
