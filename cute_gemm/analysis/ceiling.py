"""What bounds a kernel: the throughput of each unit that it uses, and the one that is used longest.

A ceiling, not a prediction: each unit is taken to be busy in every clock, at boost clock, and the
others to wait for nothing. Latencies, barriers, address arithmetic and L2 are left out, so a kernel
is at most as fast as this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cute_gemm.cute.atoms import MMA_ATOMS
from cute_gemm.kernels.cutlass import config as cutlass_config
from cute_gemm.kernels.simt import structure as simt_structure
from cute_gemm.problem.dtypes import factor

if TYPE_CHECKING:
    from cute_gemm.analysis.report import Report
    from cute_gemm.gpus.table import Gpu, Peak
    from cute_gemm.kernels.base import Kernel

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
    """One unit.

    Attributes
    ----------
    unit
        ``"FMA pipes"``, ``"shared memory"``, ...: a key of ``SOURCES``.
    work, of
        How much of what: ``2.1e9``, ``"wavefronts"``.
    rate, per
        How much of it ``"SM and clock"``, or ``"second"`` of the GPU.
    seconds
        The least time that it takes.
    fraction
        Of the peak of FMA (of tensor cores), what this unit alone would allow; None without a peak.
    """

    unit: str
    work: float
    of: str
    rate: float
    per: str
    seconds: float
    fraction: float | None

    @property
    def source(self) -> str:
        """What the rate assumes, and where it is stated."""
        return SOURCES[self.unit]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The bounds of a kernel on a GPU.

    Attributes
    ----------
    gpu, clock_ghz
        Its name, and the clock that is assumed.
    peak
        Type, unit and 10**12 operations per second of the products; None when it is not known.
    bounds
        The slowest first.
    ctas, mean_ctas
        CTAs of the multiprocessor that has most, which all the times but DRAM's are of; CTAs over
        multiprocessors.
    flops
        Operations of the problem.
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
        """The unit that is used longest."""
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


def ceiling(kernel: Kernel, report: Report) -> Ceiling | None:
    """Return what bounds a kernel on the GPU that its report is placed on.

    Parameters
    ----------
    kernel
        One of ours, which has a CTA tile.
    report
        Its report.

    Returns
    -------
    Ceiling or None
        None without a GPU, and when there is nothing to do.

    Examples
    --------
    A float32 kernel that reads two words of shared memory for every product (two wavefronts for 32
    products, which 128 lanes make in a quarter of a clock) reaches an eighth of the peak.
    """
    gpu, flops = report.performance.gpu, report.performance.flops
    if gpu is None or not flops:
        return None
    tiles, products = _work(kernel, report)
    peak = _peak(report, gpu)
    most, mean = -(-tiles // gpu.sms), tiles / gpu.sms
    clocks = gpu.sms * gpu.clock_ghz * 1e9  # of all multiprocessors, in a second
    rows = [(row, row.launch.requests - row.launch.off) for row in report.rows]
    in_gmem = [(row.launch, issued) for row, issued in rows if row.space == "global"]
    in_smem = [(row, issued) for row, issued in rows if row.space == "shared"]
    on_sm: list[tuple[str, float, str, float]] = []  # unit, work, of, rate
    if peak is not None:
        lanes = peak.tflops * 1e12 / 2 / clocks
        if peak.unit == "CUDA cores":
            lanes = round(lanes)
            on_sm.append(("FMA pipes", products / 32, "warp FMAs", lanes / 32))
            # A cp.async has a row of each space.
            moves = [issued for row, issued in in_smem if row.instruction != "cp.async"]
            moves += [issued for _, issued in in_gmem]
            on_sm.append(("instruction issue", products / 32 + sum(moves), "instructions", _ISSUE))
        else:
            on_sm.append(("tensor cores", products, "products", lanes))
    wavefronts = sum(row.launch.wavefronts or 0 for row, _ in in_smem)
    on_sm.append(("shared memory", wavefronts, "wavefronts", _WAVEFRONTS))
    passes = sum(max(issued, (totals.lines or 0) / _LINES) for totals, issued in in_gmem)
    on_sm.append(("L1 tags", passes, "passes", _PASSES))
    found = [
        (unit, work, of, rate, "SM and clock", work / rate / clocks * most / mean)
        for unit, work, of, rate in on_sm
        if work
    ]
    moved, bandwidth = report.performance.traffic.compulsory_bytes, gpu.bandwidth_gbs * 1e9
    found.append(("DRAM", moved, "bytes", bandwidth, "second", moved / bandwidth))
    found.sort(key=lambda one: -one[-1])
    least = flops / (peak.tflops * 1e12) if peak else None
    bounds = tuple(Bound(*one, least / one[-1] if least else None) for one in found)
    return Ceiling(gpu.name, gpu.clock_ghz, peak, bounds, most, mean, flops)


def _work(kernel: Kernel, report: Report) -> tuple[int, int]:
    """CTAs that have a tile, and the real products that they make."""
    problem = report.problem
    bm, bn, bk = report.config.tile
    tiles = -(-problem.m // bm) * -(-problem.n // bn)
    products = tiles * bm * bn * -(-problem.k // bk) * bk
    if not getattr(kernel, "staged", True):  # threads past the edges have nothing to do
        products = problem.m * problem.n * problem.k
    return tiles, products * (4 if problem.inputs.is_complex else 1)


def _peak(report: Report, gpu: Gpu) -> Peak | None:
    """The peak rate of the unit that the kernel multiplies with."""
    problem, config = report.problem, report.config
    if isinstance(config, simt_structure.Config):
        return gpu.peak(problem.compute, "CUDA cores")  # half types are multiplied as float32
    if isinstance(config, cutlass_config.CutlassUniversalConfig):
        cores = cutlass_config.MATH[config.math].opcode == "Simt"
    else:
        cores = MMA_ATOMS[config.mma].threads == 1
    key = factor(problem.inputs.name, problem.compute).name
    return gpu.peak(key, "CUDA cores" if cores else "tensor cores")
