"""What bounds a kernel on a GPU: bytes and operations, the roofline, occupancy and waves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm._text import duration, short, si
from cute_gemm.analysis.rows import percent
from cute_gemm.arch import MULTIPROCESSORS, Arch
from cute_gemm.errors import OptionError
from cute_gemm.gpus.occupancy import Occupancy, Waves, occupancy, waves
from cute_gemm.gpus.table import Gpu, stands_for
from cute_gemm.gpus.table import gpu as gpu_named
from cute_gemm.model.gmem import SECTOR
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.cubin import Resources
    from cute_gemm.toolchain.signature import Launch


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the launch moves, by operand (``"A"``, ``"B"``, ``"C"``) and in all.

    Attributes
    ----------
    compulsory
        Bytes that any kernel must move: A and B read once, C written once, and C read once if beta
        is not 0. What DRAM sees at least.
    requested
        Bytes of the sectors that the multiprocessors ask for, read and written: what L2 sees when
        L1 keeps nothing.
    """

    compulsory: dict[str, int]
    requested: dict[str, int]

    @property
    def compulsory_bytes(self) -> int:
        """Sum over the operands."""
        return sum(self.compulsory.values())

    @property
    def requested_bytes(self) -> int:
        """Sum over the operands."""
        return sum(self.requested.values())

    @property
    def excess(self) -> dict[str, float]:
        """Requested over compulsory bytes, by operand; 0.0 for one without bytes."""
        return {n: _ratio(self.requested[n], c) for n, c in self.compulsory.items()}


@dataclass(frozen=True, slots=True)
class PerResult:
    """Accesses per element of C, as tutorials count them: in elements, not in bytes or requests.

    A lane that loads a vector loads all its elements, even where the end of the matrix cuts the
    vector short; of ldmatrix every row address stands for 16 bytes. For a tile of bM x bN x bK the
    first is k / bM + k / bN when m, n and k are multiples of the tile.

    Attributes
    ----------
    global_loads
        Elements of A and B that all lanes load from global memory, over m * n.
    global_stores
        Elements of C that all lanes store, over m * n: 1 when each is stored once.
    shared_stores
        Elements of A and B that all lanes write to shared memory, over m * n.
    shared_loads
        Elements of A and B that all lanes read from shared memory, over m * n. (What an epilogue
        stages there is no part of either; both are None for a kernel whose shared-memory accesses
        are not described.)
    """

    global_loads: float
    global_stores: float
    shared_stores: float | None
    shared_loads: float | None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where the problem stands on the roofline of a GPU.

    Attributes
    ----------
    peak_tflops, unit
        Peak rate of dense products of this type, in 10**12 operations per second, and what makes
        them: ``"tensor cores"`` or ``"CUDA cores"``.
    bandwidth_gbs
        Memory bandwidth in 10**9 bytes per second.
    ridge
        Operations per byte at which the two take equally long.
    intensity
        Operations per compulsory byte.
    compute_seconds, memory_seconds
        Least time for the operations, and for the compulsory bytes.

    Notes
    -----
    S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", CACM 52(4), 2009.
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
        """Which of the two takes longer."""
        return "memory" if self.memory_seconds > self.compute_seconds else "compute"

    @property
    def seconds(self) -> float:
        """Least time that the problem can take."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def attainable_tflops(self) -> float:
        """Highest rate that the problem allows, in 10**12 operations per second."""
        return min(self.peak_tflops, self.intensity * self.bandwidth_gbs / 1e3)


@dataclass(frozen=True, slots=True)
class Performance:
    """What bounds a kernel for one problem.

    Attributes
    ----------
    flops
        Operations: 2 m n k.
    traffic
        Bytes that it moves.
    intensity
        Operations per compulsory byte; 0.0 without bytes.
    requested_intensity
        Operations per requested byte; 0.0 without bytes.
    per_result
        Accesses per element of C.
    gpu
        The GPU that it is placed on; None when none was named and none stands for the arch.
    roofline
        None without a GPU, or when the rate of this type is not known.
    occupancy
        None when the limits of the compute capability are not known.
    waves
        None without a GPU, or when not even one CTA fits on a multiprocessor.
    """

    flops: int
    traffic: Traffic
    intensity: float
    requested_intensity: float
    per_result: PerResult
    gpu: Gpu | None
    roofline: Roofline | None
    occupancy: Occupancy | None
    waves: Waves | None

    def to_dict(self) -> dict[str, Any]:
        """Return everything in strings, numbers, lists and dicts; None for what is not known.

        Examples
        --------
        ``performance.to_dict()["roofline"]["bound"]`` is ``"memory"`` or ``"compute"``.
        """
        gpu, roofline, held = self.gpu, self.roofline, self.occupancy
        return {
            "flops": self.flops,
            "traffic": {
                "compulsory": dict(self.traffic.compulsory),
                "requested": dict(self.traffic.requested),
                "excess": self.traffic.excess,
                "compulsory_bytes": self.traffic.compulsory_bytes,
                "requested_bytes": self.traffic.requested_bytes,
            },
            "intensity": self.intensity,
            "requested_intensity": self.requested_intensity,
            "per_result": asdict(self.per_result),
            "gpu": None
            if gpu is None
            else {
                "name": gpu.name,
                "cc": gpu.cc,
                "sms": gpu.sms,
                "clock_ghz": gpu.clock_ghz,
                "bandwidth_gbs": gpu.bandwidth_gbs,
                "l2_bytes": gpu.l2_bytes,
                "source": gpu.source,
            },
            "roofline": None
            if roofline is None
            else {
                **asdict(roofline),
                "bound": roofline.bound,
                "seconds": roofline.seconds,
                "attainable_tflops": roofline.attainable_tflops,
            },
            "occupancy": None
            if held is None
            else {
                **asdict(held),
                "limiter": list(held.limiter),
                "fraction": held.fraction,
                "registers_known": held.registers_known,
            },
            "waves": None if self.waves is None else asdict(self.waves),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) pairs for printing; every number with its unit."""
        traffic, per = self.traffic, self.per_result
        excess = ", ".join(
            f"{name} {short(ratio)}x" for name, ratio in traffic.excess.items() if ratio
        )
        reuse = f"{short(per.global_loads)} elements loaded from global memory, "
        if per.shared_stores is not None and per.shared_loads is not None:
            reuse += f"{short(per.shared_stores)} written to shared memory, "
            reuse += f"{short(per.shared_loads)} read from it, "
        found = [
            ("work", f"{si(self.flops)}FLOP"),
            (
                "traffic",
                f"{si(traffic.compulsory_bytes)}B compulsory, "
                f"{si(traffic.requested_bytes)}B requested of L2"
                + (f" ({excess})" if excess else ""),
            ),
            (
                "intensity",
                f"{short(self.intensity)} FLOP per compulsory byte, "
                f"{short(self.requested_intensity)} per requested byte",
            ),
            ("per element of C", f"{reuse}{short(per.global_stores)} stored"),
        ]
        if self.gpu is not None and self.roofline is not None:
            found.append(("roofline", _roofline_text(self.gpu, self.roofline)))
        if self.occupancy is not None:
            found.append(("occupancy", _occupancy_text(self.occupancy)))
        if self.gpu is not None and self.waves is not None:
            found.append(("waves", _waves_text(self.gpu, self.waves)))
        return found


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def _roofline_text(gpu: Gpu, roofline: Roofline) -> str:
    side = "below" if roofline.bound == "memory" else "above"
    return (
        f"{roofline.bound}-bound on {gpu.name}: {short(roofline.intensity)} FLOP/B is {side} its "
        f"ridge of {short(roofline.ridge)} ({short(roofline.peak_tflops)} TFLOP/s of its "
        f"{roofline.unit}, {short(roofline.bandwidth_gbs)} GB/s); at most "
        f"{short(roofline.attainable_tflops)} TFLOP/s, at least {duration(roofline.seconds)} "
        f"({duration(roofline.compute_seconds)} of operations, "
        f"{duration(roofline.memory_seconds)} of memory)"
    )


def _occupancy_text(held: Occupancy) -> str:
    if not held.ctas_per_sm:
        return f"no CTA fits on a multiprocessor: too much of {' and '.join(held.limiter)}"
    others = ", ".join(
        f"{name} {count}"
        for name, count in sorted(held.limits.items(), key=lambda item: item[1])
        if name not in held.limiter
    )
    many = "1 CTA" if held.ctas_per_sm == 1 else f"{held.ctas_per_sm} CTAs"
    text = (
        f"{many}, {held.warps_per_sm} of {held.max_warps} warps per "
        f"multiprocessor ({percent(held.fraction)}), limited by {' and '.join(held.limiter)}"
    )
    text += f" (others would allow: {others})" if others else ""
    return text if held.registers_known else f"{text}; registers are not known without a build"


def _waves_text(gpu: Gpu, grid: Waves) -> str:
    tail = "no tail"
    if grid.tail_ctas:
        many = "1 CTA" if grid.tail_ctas == 1 else f"{grid.tail_ctas:,} CTAs"
        part = percent(grid.tail_fraction)
        tail = f"{grid.full:,} full and a tail of {many} in {part} of its places"
    return (
        f"{short(grid.waves)} on the {gpu.sms} multiprocessors of {gpu.name}: {tail}; "
        f"{percent(grid.efficiency)} of the time used"
    )


def elements(row: AccessRow, size: int) -> int:
    """Elements that all lanes of the launch move; of a bulk copy, which has no lanes, its bytes."""
    totals = row.launch
    moved = totals.lanes * row.bits // 8 if totals.lanes else totals.bytes or 0
    return int(moved) // size


def _per_result(problem: GemmProblem, rows: tuple[AccessRow, ...]) -> PerResult:
    results = problem.m * problem.n * problem.l
    sizes = {x.name: dtype(x.dtype).bytes for x in (problem.A, problem.B, problem.C)}

    def count(operands: str, space: str, direction: str) -> float:
        chosen = (
            row
            for row in rows
            if row.operand in operands and (row.space, row.direction) == (space, direction)
        )
        return _ratio(sum(elements(row, sizes[row.operand]) for row in chosen), results)

    described = any(row.operand in "AB" and row.space == "shared" for row in rows)
    return PerResult(
        global_loads=count("AB", "global", "load"),
        global_stores=count("C", "global", "store"),
        shared_stores=count("AB", "shared", "store") if described else None,
        shared_loads=count("AB", "shared", "load") if described else None,
    )


def compulsory_bytes(problem: GemmProblem, reads_c: bool) -> dict[str, int]:
    """Bytes of each matrix that have to be moved, whatever the kernel."""
    matrices = (problem.A, problem.B, problem.C)
    found = {matrix.name: matrix.nbytes for matrix in matrices}
    if reads_c:
        found["C"] *= 2
    return found


def roofline(gpu: Gpu, problem: GemmProblem, reads_c: bool = False) -> Roofline | None:
    """Return where a problem stands on the roofline of a GPU; None without a peak for its type."""
    element = dtype(problem.A.dtype)
    # Products of complex numbers are made of products of their parts.
    by_compute = problem.compute == "tf32" or element.is_complex
    peak = gpu.peak(problem.compute if by_compute else element.name)
    if peak is None:
        return None
    compulsory = sum(compulsory_bytes(problem, reads_c).values())
    return Roofline(
        peak_tflops=peak.tflops,
        unit=peak.unit,
        bandwidth_gbs=gpu.bandwidth_gbs,
        ridge=peak.tflops * 1e3 / gpu.bandwidth_gbs,
        intensity=_ratio(problem.flops, compulsory),
        compute_seconds=problem.flops / (peak.tflops * 1e12),
        memory_seconds=compulsory / (gpu.bandwidth_gbs * 1e9),
    )


def _place(arch: Arch, gpu: Gpu | str | None) -> Gpu | None:
    """Return the GPU that is meant, which must run cubins of ``arch``."""
    if gpu is None:
        return stands_for(arch)
    found = gpu_named(gpu) if isinstance(gpu, str) else gpu
    if not arch.runs_on(divmod(found.cc, 10)):
        raise OptionError(
            f"gpu={found.name!r} has compute capability {found.cc // 10}.{found.cc % 10} and does "
            f"not run kernels of {arch}; expected a GPU of that arch, or another arch= with it"
        )
    return found


def performance(
    problem: GemmProblem,
    launch: Launch,
    arch: str,
    rows: Iterable[AccessRow],
    resources: Resources | None = None,
    gpu: Gpu | str | None = None,
    reads_c: bool = False,
) -> Performance:
    """Return what bounds a kernel for a problem.

    Parameters
    ----------
    problem
        The problem.
    launch
        CTAs, threads per CTA, dynamic shared memory in bytes.
    arch
        What the kernel is compiled for (``"sm_80"``).
    rows
        One per memory instruction, with the totals of the launch.
    resources
        Registers and static shared memory of the build; without it occupancy is an upper bound.
    gpu
        A row of ``gpus.GPUS`` or its name; by default the one that stands for the arch.
    reads_c
        Whether C is read (beta is not 0).

    Returns
    -------
    Performance

    Raises
    ------
    OptionError
        For a GPU that is not known, or that does not run kernels of ``arch``.

    Examples
    --------
    For float16, 4096 x 4096 x 4096 with a tile of 128 x 256 x 64, ``per_result.global_loads`` is
    4096 / 128 + 4096 / 256 = 48.0, and ``roofline.bound`` is ``"compute"`` on an A100.
    """
    rows = tuple(rows)
    place = _place(Arch(arch), gpu)
    compulsory = compulsory_bytes(problem, reads_c)
    requested = dict.fromkeys(compulsory, 0)
    for row in rows:
        if row.space == "global":
            moved = (row.launch.l2_sectors or row.launch.sectors or 0) * SECTOR
            requested[row.operand] = requested.get(row.operand, 0) + moved
    traffic = Traffic(compulsory, requested)
    intensity = _ratio(problem.flops, traffic.compulsory_bytes)

    held = grid = None
    sm = MULTIPROCESSORS.get(place.cc) if place else Arch(arch).multiprocessor
    if sm is not None:
        registers = resources.registers if resources else None
        shared = launch.smem + (resources.shared_static if resources else 0)
        held = occupancy(sm, launch.block, registers, shared)
    if place is not None and held is not None and held.ctas_per_sm:
        grid = waves(launch.grid, held.ctas_per_sm, place.sms)
    return Performance(
        flops=problem.flops,
        traffic=traffic,
        intensity=intensity,
        requested_intensity=_ratio(problem.flops, traffic.requested_bytes),
        per_result=_per_result(problem, rows),
        gpu=place,
        roofline=roofline(place, problem, reads_c) if place else None,
        occupancy=held,
        waves=grid,
    )
