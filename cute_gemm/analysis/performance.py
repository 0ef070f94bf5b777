"""What bounds a kernel on a GPU: bytes and operations, the roofline, occupancy and waves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from cute_gemm._text import counted, duration, named, percent, short, si
from cute_gemm.analysis.per_result import per_result
from cute_gemm.arch import MULTIPROCESSORS, Arch
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.occupancy import Occupancy, Waves, occupancy, waves
from cute_gemm.gpus.table import GpuLike, of_arch, stands_for
from cute_gemm.model.gmem import SECTOR, bypasses_l1
from cute_gemm.problem.passes import Packing, Reduction

if TYPE_CHECKING:
    from cute_gemm.analysis.passes import PassReport
    from cute_gemm.analysis.rows import AccessRow
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.cubin import Resources
    from cute_gemm.toolchain.signature import Launch


#: What slices of K leave in scratch.
SUMS = "partial sums"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the launches move, by operand and in all.

    ``compulsory``: what any kernel must move, and DRAM sees at least: A and B read once, C written
    once, and read once if beta is not 0. ``requested``: bytes of the sectors that the launches ask
    for, read and written, those before and behind the kernel too: of ``"A"``, ``"B"``, ``"C"``, and
    of what lies in scratch, ``"packed A"``, ``"packed B"``, ``"partial sums"``. ``through_l1``: of
    these the loads that ask L1 first (``l1tex__t_sectors``); L2 sees (``lts__t_sectors``) what L1
    has not kept of them, which is not predicted, and all others.
    """

    compulsory: dict[str, int]
    requested: dict[str, int]
    through_l1: int = 0

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

    def __str__(self) -> str:
        told = [f"{name} {short(ratio)}x" for name, ratio in self.excess.items() if ratio]
        scratch = [name for name in self.requested if name not in self.compulsory]
        told += [f"{name} {si(self.requested[name])}B" for name in scratch]
        by_l1 = f", {si(self.through_l1)}B of it by loads that L1 may serve" * bool(self.through_l1)
        return (
            f"{si(self.compulsory_bytes)}B compulsory, {si(self.requested_bytes)}B requested of "
            + "L1 and " * bool(self.through_l1)
            + "L2"
            + f" ({', '.join(told)})" * bool(told)
            + by_l1
        )


@dataclass(frozen=True, slots=True)
class PerResult:
    """Elements that the kernel's lanes move, over m * n: of A and B, and of C where it is stored.

    Of a K that is cut into slices it stores partial sums, as many as slices. For a tile of
    bM x bN x bK ``global_loads`` is k / bM + k / bN when m, n and k are multiples of the tile. What
    an epilogue stages in shared memory is no part; both figures of it are None for a kernel whose
    shared-memory accesses are not described.
    """

    global_loads: float
    global_stores: float
    shared_stores: float | None
    shared_loads: float | None


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where the problem stands on the roofline of a GPU.

    S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", CACM 52(4), 2009. Rates are in 10**12 operations and 10**9 bytes per
    second; ``unit`` makes the products; ``ridge`` and ``intensity`` are operations per byte at
    which both take equally long, and per compulsory byte; the times are the least for each.
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

    ``intensity`` and ``requested_intensity`` are operations per compulsory and per requested byte,
    0.0 without bytes. ``gpu`` is None when none was named and none stands for the arch, and then
    ``roofline`` (also without a known rate) and ``waves`` (also when no CTA fits) are too;
    ``occupancy`` when the limits of the compute capability are not known.
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
        """Return everything in strings, numbers, lists and dicts; None for what is not known."""
        of_gpu = ("name", "cc", "sms", "clock_ghz", "bandwidth_gbs", "l2_bytes", "source")
        return {
            "flops": self.flops,
            "traffic": _dict(self.traffic, "excess", "compulsory_bytes", "requested_bytes"),
            **named(self, "intensity", "requested_intensity"),
            "per_result": asdict(self.per_result),
            "gpu": named(self.gpu, *of_gpu) if self.gpu else None,
            "roofline": _dict(self.roofline, "bound", "seconds", "attainable_tflops"),
            "occupancy": _dict(self.occupancy, "fraction", "registers_known"),
            "waves": _dict(self.waves),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) pairs for printing; every number with its unit."""
        per = self.per_result
        intensity = f"{short(self.intensity)} FLOP per compulsory byte, "
        intensity += f"{short(self.requested_intensity)} per requested byte"
        reuse = f"{short(per.global_loads)} elements loaded from global memory, "
        if per.shared_stores is not None and per.shared_loads is not None:
            reuse += f"{short(per.shared_stores)} written to shared memory, "
            reuse += f"{short(per.shared_loads)} read from it, "
        found = [
            ("work", f"{si(self.flops)}FLOP"),
            ("traffic", str(self.traffic)),
            ("intensity", intensity),
            ("per element of C", f"{reuse}{short(per.global_stores)} {self._stored}"),
        ]
        if self.gpu is not None and self.roofline is not None:
            found.append(("roofline", _roofline_text(self.gpu, self.roofline)))
        if self.occupancy is not None:
            found.append(("occupancy", _occupancy_text(self.occupancy)))
        if self.gpu is not None and self.waves is not None:
            found.append(("waves", _waves_text(self.gpu, self.waves)))
        if self.gpu is None:
            why = "no GPU stands for this arch; name one: gpu=, --gpu NAME or FILE"
            found.append(("not known", f"roofline and waves: {why}"))
        elif self.roofline is None:
            found.append(("not known", f"roofline: no rate of {self.gpu.name} for these types"))
        return found

    @property
    def _stored(self) -> str:
        """What the kernel stores."""
        return "partial sums stored" if SUMS in self.traffic.requested else "stored"


def _dict(value: Any, *properties: str) -> dict[str, Any] | None:
    """The fields of a dataclass, and some of its properties."""
    if value is None:
        return None
    return asdict(value) | named(value, *properties)


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
    limits = sorted(held.limits.items(), key=lambda item: item[1])
    others = ", ".join(f"{name} {count}" for name, count in limits if name not in held.limiter)
    text = (
        f"{counted(held.ctas_per_sm, 'CTA')}, {held.warps_per_sm} of "
        f"{held.max_warps} warps per multiprocessor ({percent(held.fraction)}), limited by "
        + " and ".join(held.limiter)
    )
    text += f" (others would allow: {others})" if others else ""
    return text if held.registers_known else f"{text}; registers are not known without a build"


def _waves_text(gpu: Gpu, grid: Waves) -> str:
    many, part = counted(grid.tail_ctas, grid.of[:-1]), percent(grid.tail_fraction)
    tail = f"{grid.full:,} full and a tail of {many} in {part} of its places"
    tail = tail if grid.tail_ctas else "no tail"
    where = f"on the {gpu.sms} multiprocessors of {gpu.name}"
    if grid.of == "tiles":
        where = f"rounds of tiles, one for each of {grid.places:,} CTAs that run at a time, {where}"
    return f"{short(grid.waves)} {where}: {tail}; {percent(grid.efficiency)} of the time used"


def _traffic(
    problem: GemmProblem, rows: Iterable[AccessRow], passes: Iterable[PassReport], reads_c: bool
) -> Traffic:
    """What the kernel and the passes beside it move."""
    compulsory = compulsory_bytes(problem, reads_c)
    # What the kernel finds and leaves in scratch, by the operand that it is to the kernel.
    scratch: dict[str, str] = {}
    asked: list[tuple[str, AccessRow]] = []
    for one in passes:
        packs = isinstance(one.problem, Packing)
        names = [f"packed {x.name}" for x in one.problem.sources] if packs else [SUMS]
        scratch |= zip([x.name for x in one.problem.sources] if packs else "C", names, strict=True)
        for row in one.rows:
            here = f"packed {row.part}" if packs else SUMS
            asked.append((here if row.operand == "scratch" else row.operand, row))
    asked += ((scratch.get(row.operand, row.operand), row) for row in rows)
    requested = dict.fromkeys(compulsory, 0)
    through_l1 = 0
    for name, row in asked:
        if row.space == "global":
            moved = (row.launch.l2_sectors or 0) * SECTOR
            requested[name] = requested.get(name, 0) + moved
            past_l1 = row.instruction == "TMA" or bypasses_l1(row.instruction, row.bits)
            through_l1 += moved * (row.direction == "load" and not past_l1)
    return Traffic(compulsory, requested, through_l1)


def _reuse(problem: GemmProblem, rows: tuple[AccessRow, ...]) -> PerResult:
    def elements(*kind: str) -> float:
        return per_result(problem, rows, *kind).get("elements", 0.0)

    moved = elements("AB", "global", "load"), elements("C", "global", "store")
    if not any(row.operand in "AB" and row.space == "shared" for row in rows):
        return PerResult(*moved, None, None)
    return PerResult(*moved, elements("AB", "shared", "store"), elements("AB", "shared", "load"))


def compulsory_bytes(problem: GemmProblem, reads_c: bool) -> dict[str, int]:
    """Bytes of each matrix that have to be moved, whatever the kernel."""
    moved = {matrix.name: matrix.nbytes for matrix in problem.matrices}
    return moved | {"C": moved["C"] * (1 + reads_c)}


def roofline(gpu: Gpu, problem: GemmProblem, reads_c: bool = False) -> Roofline | None:
    """Return where a problem stands on the roofline of a GPU; None without a peak for its type."""
    peak, bandwidth = gpu.peak(problem.factor.name), gpu.bandwidth_gbs
    if peak is None:
        return None
    compulsory = sum(compulsory_bytes(problem, reads_c).values())
    ridge, intensity = peak.tflops * 1e3 / bandwidth, _ratio(problem.flops, compulsory)
    times = problem.flops / (peak.tflops * 1e12), compulsory / (bandwidth * 1e9)
    return Roofline(peak.tflops, peak.unit, bandwidth, ridge, intensity, *times)


def performance(
    problem: GemmProblem, launch: Launch, arch: str, rows: Iterable[AccessRow],
    resources: Resources | None = None, gpu: GpuLike | None = None, reads_c: bool = False,
    passes: Iterable[PassReport] = (),
) -> Performance:  # fmt: skip
    """Return what bounds a kernel for a problem.

    ``launch`` is of a kernel compiled for ``arch`` with ``rows`` of memory instructions; without
    ``resources`` of a build occupancy is an upper bound. ``gpu``: what ``gpus.table.gpu`` takes,
    by default the one that stands for the arch; OptionError for one that is not known or does
    not run kernels of ``arch``. ``reads_c``: beta is not 0. ``passes``: the launches before
    and behind.
    """
    rows, passes = tuple(rows), tuple(passes)
    place = stands_for(Arch(arch)) if gpu is None else of_arch(gpu, Arch(arch))
    traffic = _traffic(problem, rows, passes, reads_c)
    stored = replace(problem, C=next(
        (one.problem.sums for one in passes if isinstance(one.problem, Reduction)), problem.C
    ))  # fmt: skip
    held = grid = None
    sm = MULTIPROCESSORS.get(place.cc) if place else Arch(arch).multiprocessor
    if sm is not None:
        registers = resources.registers if resources else None
        shared = launch.smem + (resources.shared_static if resources else 0)
        held = occupancy(sm, launch.block, registers, shared)
    if launch.tiles and place is not None:
        grid = waves(launch.tiles, launch.places, "tiles")
    elif place is not None and held is not None and held.ctas_per_sm:
        grid = waves(launch.ctas, held.ctas_per_sm * place.sms)
    flops, roof = problem.flops, roofline(place, problem, reads_c) if place else None
    intensity, requested_intensity = (
        _ratio(flops, moved) for moved in (traffic.compulsory_bytes, traffic.requested_bytes)
    )
    return Performance(
        flops, traffic, intensity, requested_intensity, _reuse(stored, rows), place, roof, held,
        grid,
    )  # fmt: skip
