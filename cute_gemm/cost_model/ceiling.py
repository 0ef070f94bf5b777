"""The bounds of a kernel: the time of each unit that it uses at peak throughput; the slowest binds.

A ceiling, not a prediction: each unit is taken to be busy in every clock, at boost clock, and the
others to wait for nothing. Latencies, barriers, address arithmetic and L2 are left out, so a kernel
is at most as fast as this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.access.accesses import TmaAccess
from cute_gemm.access.smem import SharedCounts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cute_gemm.access.accesses import Access, Work
    from cute_gemm.access.analyze import Analysis
    from cute_gemm.gpus.gpu import Gpu, Peak

_GUIDE = "CUDA C++ Programming Guide"

#: Why each rate is what it is.
SOURCES = {
    "FMA pipes": "every product of the tiles, past the edges of C too",
    "tensor cores": "every product of the tiles, past the edges of C too",
    "instruction issue": (
        "4 schedulers issue one instruction each in a clock; counted are FMA, loads and stores "
        f"({_GUIDE}, Compute Capabilities)"
    ),
    "shared memory": (
        "32 banks of 4 bytes per clock make a wavefront a clock "
        f"({_GUIDE}, Compute Capabilities, Shared Memory)"
    ),
    "L1 tags": (
        "of global memory: a pass a clock, of up to 4 lines of one request "
        "(https://forums.developer.nvidia.com/t/312884, NVIDIA)"
    ),
    "DRAM": "A and B read once, C written once (and read with beta)",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The least time that a kernel uses one unit.

    ``work`` is how much of what (``of``: ``"wavefronts"``), ``rate`` how much of it per ``"SM and
    clock"``, or per ``"second"`` of the GPU. ``fraction``: what this unit alone would allow, of the
    peak of FMA (of tensor cores); None without a peak.
    """

    unit: str  # a key of SOURCES
    work: float
    of: str
    rate: float
    per: str
    seconds: float
    fraction: float | None

    @property
    def source(self) -> str:
        """The source of the rate, with what it assumes."""
        return SOURCES[self.unit]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The bounds of a kernel on a GPU, the slowest first.

    ``peak`` is the rate of its products, None when it is not known. ``ctas`` are those of the
    multiprocessor that has most, which all the times but DRAM's are of; ``mean_ctas``: CTAs over
    multiprocessors. ``flops``: operations of the problem.
    """

    gpu: str
    clock_ghz: float
    peak: Peak | None
    bounds: tuple[Bound, ...]
    ctas: int
    mean_ctas: float
    flops: int

    @property
    def binding(self) -> Bound:
        """Name of the unit that is used longest."""
        return self.bounds[0]

    @property
    def tflops(self) -> float:
        """The ceiling in 10**12 operations per second."""
        return self.flops / self.binding.seconds / 1e12

    @property
    def fraction(self) -> float | None:
        """The ceiling over the peak; None without a peak."""
        return self.binding.fraction

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts."""
        return {
            "gpu": self.gpu,
            "clock_ghz": self.clock_ghz,
            "peak": None if self.peak is None else self.peak._asdict(),
            "bounds": [{**asdict(bound), "source": bound.source} for bound in self.bounds],
            "binding": self.binding.unit,
            "tflops": self.tflops,
            "fraction": self.fraction,
            "ctas_of_the_busiest_sm": self.ctas,
            "mean_ctas_per_sm": self.mean_ctas,
        }


#: Of an SM, in a clock: instructions issued, wavefronts, passes through L1's tags; and the lines
#: of such a pass.
_ISSUE, _WAVEFRONTS, _PASSES, _LINES = 4, 1, 1, 4


def ceiling(
    work: Work, accesses: Iterable[tuple[Access, Analysis]], gpu: Gpu, flops: int, moved: int
) -> Ceiling | None:
    """Return the ceiling of a launch on a GPU; None for a problem without operations.

    ``flops`` are the problem's operations, ``moved`` the bytes that DRAM has to move at least. A
    float32 kernel that reads two words of shared memory for every product (two wavefronts for 32
    products, which 128 lanes make in a quarter of a clock) reaches an eighth of the peak.
    """
    if not flops:
        return None
    peak, products = gpu.peak(work.rate, work.unit), work.products
    most, mean = -(-work.ctas // gpu.sms), work.ctas / gpu.sms
    clocks = gpu.sms * gpu.clock_ghz * 1e9  # of all multiprocessors, in a second
    moves, wavefronts, passes = 0, 0, 0.0
    for access, analysis in accesses:
        counts = analysis.launch
        if isinstance(counts, SharedCounts):
            wavefronts += counts.wavefronts
        elif not isinstance(access, TmaAccess):  # which goes past L1
            passes += max(counts.requests, counts.lines / _LINES)
        # A cp.async has an access of each space.
        if not isinstance(counts, SharedCounts) or access.instruction != "cp.async":
            moves += counts.requests
    on_sm: list[tuple[str, float, str, float]] = []  # unit, work, of, rate
    if peak is not None:
        lanes = peak.tflops * 1e12 / 2 / clocks
        if peak.unit == "CUDA cores":
            on_sm.append(("FMA pipes", products / 32, "warp FMAs", round(lanes) / 32))
            on_sm.append(("instruction issue", products / 32 + moves, "instructions", _ISSUE))
        else:
            on_sm.append(("tensor cores", products, "products", lanes))
    on_sm.append(("shared memory", wavefronts, "wavefronts", _WAVEFRONTS))
    on_sm.append(("L1 tags", passes, "passes", _PASSES))
    found_bounds = [
        (unit, done, of, rate, "SM and clock", done / rate / clocks * most / mean)
        for unit, done, of, rate in on_sm
        if done
    ]
    bandwidth = gpu.bandwidth_gbs * 1e9
    found_bounds.append(("DRAM", moved, "bytes", bandwidth, "second", moved / bandwidth))
    found_bounds.sort(key=lambda bound: -bound[-1])
    least = flops / (peak.tflops * 1e12) if peak else None
    bounds = tuple(Bound(*bound, least / bound[-1] if least else None) for bound in found_bounds)
    return Ceiling(gpu.name, gpu.clock_ghz, peak, bounds, most, mean, flops)
