"""Bounds of a kernel on a GPU: bytes and operations, the roofline, occupancy and waves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cute_gemm._text import counted, duration, named, percent, short, si
from cute_gemm.access.gmem import SECTOR, bypasses_l1
from cute_gemm.arch import MULTIPROCESSORS, Arch
from cute_gemm.cost_model.roofline import Roofline, compulsory_bytes, ratio, roofline
from cute_gemm.gpus.gpu import Gpu
from cute_gemm.gpus.occupancy import Occupancy, Waves, occupancy, waves
from cute_gemm.gpus.table import GpuLike, of_arch, stands_for
from cute_gemm.problem.epilogue.epilogue import LINEAR_COMBINATION
from cute_gemm.problem.parts.slices import Reduction
from cute_gemm.report.per_result import per_result

if TYPE_CHECKING:
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.rendering.rows import AccessRow
    from cute_gemm.report.auxiliary import AuxiliaryReport
    from cute_gemm.toolchain.cubin import Resources
    from cute_gemm.toolchain.signature import Launch


#: Name of the partial sums that slices of K leave in scratch.
SUMS = "partial sums"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that the launches move, by operand and in total.

    ``compulsory``: bytes that any kernel must move to or from DRAM: A and B read once, C written
    once, and read once if beta is not 0. ``requested``: bytes of the sectors that all launches
    request, of ``"A"``, ``"B"``, ``"C"`` and scratch (``"packed A"``, ``"packed B"``,
    ``"partial sums"``). ``through_l1``: the part of these that loads request from L1 first
    (``l1tex__t_sectors``). L2 gets (``lts__t_sectors``) the misses of L1, which are not predicted,
    and all other requests.
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
        return {n: ratio(self.requested[n], c) for n, c in self.compulsory.items()}

    def __str__(self) -> str:
        shares = [f"{name} {short(ratio)}x" for name, ratio in self.excess.items() if ratio]
        scratch = [name for name in self.requested if name not in self.compulsory]
        shares += [f"{name} {si(self.requested[name])}B" for name in scratch]
        by_l1 = f", {si(self.through_l1)}B of it by loads that L1 may serve" * bool(self.through_l1)
        return (
            f"{si(self.compulsory_bytes)}B compulsory, {si(self.requested_bytes)}B requested of "
            + "L1 and " * bool(self.through_l1)
            + "L2"
            + f" ({', '.join(shares)})" * bool(shares)
            + by_l1
        )


@dataclass(frozen=True, slots=True)
class PerResult:
    """Elements of A and B (for stores, of C) that the kernel's lanes move, over m * n.

    With split-k, each slice stores a partial sum. For a tile of bM x bN x bK ``global_loads`` is
    k / bM + k / bN if m, n and k are multiples of the tile. C that an epilogue stages in shared
    memory does not count. Both shared-memory figures are None for a kernel that does not describe
    its shared-memory accesses.
    """

    global_loads: float
    global_stores: float
    shared_stores: float | None
    shared_loads: float | None


@dataclass(frozen=True, slots=True)
class Performance:
    """Bounds of a kernel for one problem.

    ``intensity`` and ``requested_intensity`` are operations per compulsory and per requested byte,
    0.0 without bytes. ``gpu`` is None if none was named and none stands for the arch. ``roofline``
    is None without a GPU or a known rate, ``waves`` without a GPU or if no CTA fits, ``occupancy``
    if the limits of the compute capability are not known. ``saved_bytes`` are the bytes that a
    separate epilogue kernel after this one would move in addition: C, written and read again.
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
    saved_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as strings, numbers, lists and dicts; None for unknown values."""
        of_gpu = ("name", "cc", "sms", "clock_ghz", "bandwidth_gbs", "l2_bytes", "source")
        return {
            **named(self, "flops", "saved_bytes"),
            "traffic": _dict(self.traffic, "excess", "compulsory_bytes", "requested_bytes"),
            **named(self, "intensity", "requested_intensity"),
            "per_result": asdict(self.per_result),
            "gpu": named(self.gpu, *of_gpu) if self.gpu else None,
            "roofline": _dict(self.roofline, "bound", "seconds", "attainable_tflops"),
            "occupancy": _dict(self.occupancy, "fraction", "registers_known"),
            "waves": _dict(self.waves),
        }

    def lines(self) -> list[tuple[str, str]]:
        """Return (label, text) pairs for printing."""
        per, gpu, roof = self.per_result, self.gpu, self.roofline
        intensity = f"{short(self.intensity)} FLOP per compulsory byte, "
        intensity += f"{short(self.requested_intensity)} per requested byte"
        reuse = f"{short(per.global_loads)} elements loaded from global memory, "
        if per.shared_stores is not None and per.shared_loads is not None:
            reuse += f"{short(per.shared_stores)} written to shared memory, "
            reuse += f"{short(per.shared_loads)} read from it, "
        stored = "partial sums stored" if SUMS in self.traffic.requested else "stored"
        less = f"{si(self.saved_bytes)}B and a launch less than with an elementwise kernel after"
        unknown = ""
        if gpu is None:
            unknown = "roofline and waves: no GPU stands for this arch; name one: gpu=, --gpu NAME "
            unknown += "or FILE"
        elif roof is None:
            unknown = f"roofline: no peak rate of {gpu.name} is known for these types"
        texts = {
            "work": f"{si(self.flops)}FLOP",
            "traffic": str(self.traffic),
            "intensity": intensity,
            "per element of C": f"{reuse}{short(per.global_stores)} {stored}",
            "fused": less * bool(self.saved_bytes),
            "roofline": _roofline_text(gpu, roof) if gpu and roof else "",
            "occupancy": _occupancy_text(self.occupancy) if self.occupancy else "",
            "waves": _waves_text(gpu, self.waves) if gpu and self.waves else "",
            "not known": unknown,
        }
        return [(label, text) for label, text in texts.items() if text]


def _dict(value: Any, *properties: str) -> dict[str, Any] | None:
    """Return the fields of a dataclass, and some of its properties."""
    return None if value is None else asdict(value) | named(value, *properties)


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


def _occupancy_text(residency: Occupancy) -> str:
    limiters = " and ".join(residency.limiter)
    if not residency.ctas_per_sm:
        return f"no CTA fits on a multiprocessor, limited by {limiters}"
    limits = sorted(residency.limits.items(), key=lambda item: item[1])
    others = ", ".join(f"{name} {count}" for name, count in limits if name not in residency.limiter)
    text = (
        f"{counted(residency.ctas_per_sm, 'CTA')}, {residency.warps_per_sm} of "
        f"{residency.max_warps} warps per multiprocessor ({percent(residency.fraction)}), limited "
        f"by {limiters}"
    )
    text += f" (others would allow: {others})" if others else ""
    return text if residency.registers_known else f"{text}; registers are not known without a build"


def _waves_text(gpu: Gpu, grid: Waves) -> str:
    many, part = counted(grid.tail_ctas, grid.of[:-1]), percent(grid.tail_fraction)
    tail = f"{grid.full:,} full and a tail of {many} in {part} of its places"
    tail = tail if grid.tail_ctas else "no tail"
    where = f"on the {gpu.sms} multiprocessors of {gpu.name}"
    if grid.of == "tiles":
        where = f"rounds of tiles, one for each of {grid.places:,} CTAs that run at a time, {where}"
    return f"{short(grid.waves)} {where}: {tail}; {percent(grid.efficiency)} of the time used"


def _traffic(
    problem: GemmProblem, rows: Iterable[AccessRow], auxiliary: Iterable[AuxiliaryReport],
    reads_c: bool,
) -> Traffic:  # fmt: skip
    """Return the traffic of the kernel and of its auxiliary kernels."""
    compulsory = compulsory_bytes(problem, reads_c)
    # Names of what the kernel reads from or writes to scratch, by its operand.
    scratch: dict[str, str] = {}
    moved_by: list[tuple[str, AccessRow]] = []
    for each in auxiliary:
        packs = each.packs
        scratch |= {name: f"packed {name}" for name in packs} if packs else {"C": SUMS}
        for row in each.rows:
            name = f"packed {row.part}" if packs else SUMS
            moved_by.append((name if row.operand == "scratch" else row.operand, row))
    moved_by += ((scratch.get(row.operand, row.operand), row) for row in rows)
    requested = dict.fromkeys(compulsory, 0)
    through_l1 = 0
    for name, row in moved_by:
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


def performance(
    problem: GemmProblem, launch: Launch, arch: str, rows: Iterable[AccessRow],
    resources: Resources | None = None, gpu: GpuLike | None = None, reads_c: bool = False,
    auxiliary: Iterable[AuxiliaryReport] = (),
) -> Performance:  # fmt: skip
    """Return the bounds of a kernel for a problem.

    ``launch`` is that of a kernel compiled for ``arch``, ``rows`` its memory instructions. Without
    the ``resources`` of a build, occupancy is an upper bound. ``gpu`` is an argument of
    ``gpus.table.gpu``, by default the GPU that stands for the arch; OptionError if it is not known
    or does not run kernels of ``arch``. ``reads_c``: whether beta is not 0. ``auxiliary``: the
    launches of auxiliary kernels.
    """
    rows, auxiliary = tuple(rows), tuple(auxiliary)
    place = stands_for(Arch(arch)) if gpu is None else of_arch(gpu, Arch(arch))
    traffic = _traffic(problem, rows, auxiliary, reads_c)
    reductions = [x.problem for x in auxiliary if isinstance(x.problem, Reduction)]
    stored = replace(problem, C=reductions[0].partials if reductions else problem.C)
    # Product elements that an elementwise kernel would read and write; pairs alone need one.
    saved = 2 * problem.C.nbytes * (problem.epilogue != LINEAR_COMBINATION)
    if problem.epilogue.pairs:
        saved *= 2 * all(x.slices > 1 for x in reductions)
    residency = grid = None
    sm = MULTIPROCESSORS.get(place.cc) if place else Arch(arch).multiprocessor
    if sm is not None:
        registers = resources.registers if resources else None
        shared = launch.smem + (resources.shared_static if resources else 0)
        residency = occupancy(sm, launch.block, registers, shared)
    if launch.tiles and place is not None:
        grid = waves(launch.tiles, launch.places, "tiles")
    elif place is not None and residency is not None and residency.ctas_per_sm:
        grid = waves(launch.ctas, residency.ctas_per_sm * place.sms)
    flops, roof = problem.flops, roofline(place, problem, reads_c) if place else None
    intensity, requested_intensity = (
        ratio(flops, moved) for moved in (traffic.compulsory_bytes, traffic.requested_bytes)
    )
    return Performance(
        flops, traffic, intensity, requested_intensity, _reuse(stored, rows), place, roof,
        residency, grid, saved,
    )  # fmt: skip
