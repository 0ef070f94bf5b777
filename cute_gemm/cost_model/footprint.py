"""What one CTA of a config costs a multiprocessor, from the counts that the report shows.

A `Footprint` holds the clocks that one k-tile of a CTA keeps each unit of a multiprocessor busy; it
comes from the accesses of one tile (`sample`, `tally`) and does not depend on the problem's
extents. `cost_model.prediction` turns footprints and extents into seconds.

What counts do not say, such as the clocks of a wavefront or how well a kernel overlaps loads and
products, is fitted to times that were measured on a GPU: its `Calibration`
(`cost_model.calibration`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

from cute_gemm.access.accesses import SharedAccess, TmaAccess
from cute_gemm.access.analyze import analyze
from cute_gemm.access.gmem import LINE, SECTOR
from cute_gemm.access.ideal import Kind, ideal_counts, kind_of
from cute_gemm.access.smem import SharedCounts
from cute_gemm.cost_model.calibration import Constants, Pace
from cute_gemm.dtypes import DTYPES
from cute_gemm.gpus.occupancy import occupancy
from cute_gemm.problem.parts.scales import BLOCK
from cute_gemm.problem.problem import NO_GROUPS

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access, Work
    from cute_gemm.gpus.gpu import Gpu, Unit
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem
    from cute_gemm.toolchain.signature import Launch

#: Most sectors of L2 that a k-tile's loads through L1 take, over those that its bytes fill: what
#: one load leaves of a sector, the next finds in L1.
REUSE = 1.5
#: Registers of a thread beside its accumulators.
REGISTERS = 88
#: Power in which the clocks of units are added; the higher, the more they overlap. The first is for
#: units that warps issue to in turn, the second for TMA and wgmma, which run asynchronously.
TOGETHER, ASYNCHRONOUS = 3, 6
#: k-tiles of the sample whose accesses are counted.
DEPTH = 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one CTA of a config costs a multiprocessor, whatever the problem's extents."""

    #: Extents of the CTA's tile along M, N and K.
    tile: tuple[int, int, int]
    #: Clocks of a k-tile when other CTAs fill its gaps, on all units but TMA.
    busy: float
    #: Clocks that a k-tile takes at least, when its CTA is the only one.
    alone: float
    #: Clocks until the next k-tile has arrived.
    cover: float
    #: Clocks of the epilogue.
    end: float
    #: Bytes of L2 of a k-tile: of A and what lies along M, and of B and what lies along N.
    bytes_m: float
    bytes_n: float
    #: Bytes of L2 of the epilogue.
    end_bytes: float
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: Clocks of a k-tile on each unit; of TMA if all rows of its boxes were inside of A and B.
    units: tuple[tuple[str, float], ...]
    #: Of the kernel.
    pace: Pace
    #: CTAs of a cluster along M and N.
    cluster: tuple[int, int]
    #: Microseconds of the launch.
    launch: float
    #: Products of a batch that a CTA computes.
    products: int = 1
    #: Of the GPU.
    constants: Constants = field(kw_only=True)

    @property
    def outside(self) -> float:
        """Clocks of the TMA unit for a row of a box outside of its matrix."""
        return self.constants.outside if self.pace.wgmma else 0.0

    @property
    def tma(self) -> float:
        """Clocks of a k-tile on the TMA unit."""
        return dict(self.units)["TMA"]

    @property
    def latency_cubed(self) -> float:
        """Cube of the clocks of a k-tile that no other CTA shortens, for sums of cubes."""
        return self.alone**3 + self.cover**3


def sample(
    problem: GemmProblem, tile: tuple[int, int, int], ctas: tuple[int, int] = (1, 1)
) -> GemmProblem:
    """Return a problem of ``ctas`` tiles and `DEPTH` k-tiles, with matrices laid out as these are.

    Its matrices keep only what counts depend on: type, major, and alignment and leading dimension
    modulo a line of L2. All problems of a class have the same sample.
    """
    m, n, k = tile[0] * ctas[0], tile[1] * ctas[1], DEPTH * tile[2]

    def part(matrix: Matrix, shape: tuple[int, int]) -> Matrix:
        size = DTYPES[matrix.dtype].bytes
        ld = ((pitch(matrix) or LINE) + (LINE << 10)) // size if matrix.ld else 0
        stride = (1, ld) if matrix.unit == 0 else (ld, 1)
        return replace(
            matrix, shape=shape, stride=stride, alignment=min(matrix.alignment, LINE), l=1,
            batch_stride=0, first_alignment=0, slices=1, slice_stride=0,
        )  # fmt: skip

    results = m, n // 2 if problem.epilogue.pairs else n
    A, B, C = part(problem.A, (m, k)), part(problem.B, (n, k)), part(problem.C, results)
    operands = tuple(part(matrix, results) for matrix in problem.operands)
    rows = {"scale_a": m, "scale_b": n}
    scales = tuple(
        replace(
            matrix,
            shape=(-(-rows[matrix.name] // shared), -(-k // BLOCK)),
            stride=steps(matrix),
            alignment=min(matrix.alignment, LINE),
            l=1,
            batch_stride=0,
        )
        for matrix, shared in zip(problem.scales, filter(None, problem.scale_rows), strict=True)
    )
    return replace(
        problem, m=m, n=n, k=k, l=1, A=A, B=B, C=C, k_last=0, operands=operands, scales=scales,
        groups=NO_GROUPS,
    )  # fmt: skip


def pitch(matrix: Matrix) -> int:
    """Return the greatest common divisor, in bytes, of the leading dimension and a line of L2.

    The rows of a tile begin at multiples of it, and counts depend on nothing else of the leading
    dimension. 0 for a matrix of a single row.
    """
    if matrix.shape[1 - matrix.unit] <= 1:
        return 0
    return gcd(matrix.ld * DTYPES[matrix.dtype].bytes, LINE)


def steps(matrix: Matrix) -> tuple[int, int]:
    """Return strides of block scales by which counts are the same as by their own.

    Rows a line or more apart lie in lines of their own, and k tiles begin at multiples of the
    greatest common divisor of their step and a line.
    """
    line = LINE // DTYPES[matrix.dtype].bytes
    return min(matrix.stride[0], line), gcd(matrix.stride[1], line)


class Tally(NamedTuple):
    """Counts of an operand's accesses, per k-tile or per CTA."""

    #: Wavefronts in shared memory.
    waves: float = 0.0
    #: Passes through L1's tags.
    passes: float = 0.0
    #: Sectors of L2.
    sectors: float = 0.0
    #: Instructions.
    moves: float = 0.0
    #: Lines of L2 that TMA asks for.
    lines: float = 0.0
    #: Sectors that a warp touches beyond those that its bytes fill.
    partial: float = 0.0
    #: Lines, and sectors, of L2 that TMA loads ask for beyond those that their bytes fill.
    straddled: float = 0.0
    unaligned: float = 0.0
    #: Boxes of C that TMA moves.
    boxes: float = 0.0

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally._make(map(add, self, other))


def _at_ends(access: Access) -> bool:
    """Whether only CTAs at an end of a matrix make this access."""
    guard = access.guard if isinstance(access, SharedAccess) else access
    return guard is not None and guard.words and guard.tail == "elements"


def tally(
    accesses: Iterable[Access], ctas: int = 1, ideal: Collection[Kind] = (), depth: int = DEPTH
) -> dict[str, Tally]:
    """Sum the counts of an operand's accesses in a `sample`, by ``"k-tile"`` and ``"CTA"``.

    ``ctas``: CTAs of the sample, by whose number the counts are divided; ``ideal``: accesses that
    are counted as if they were as good as an access can be (`cost_model.ideal`); ``depth``: k-tiles
    of the sample.
    """
    tallies = {"k-tile": Tally(), "CTA": Tally()}
    for access in accesses:
        # wgmma's reads of shared memory are part of its rate.
        if not _at_ends(access) and access.instruction != "wgmma":
            share = ctas * (depth if access.unit == "k-tile" else 1)
            counts = analyze(access).launch
            counts = ideal_counts(counts) if kind_of(access) in ideal else counts
            tallies[access.unit] += _tally(access, counts, share)
    return tallies


def _tally(access: Access, counts: Any, share: int) -> Tally:
    """Return the counts of one access, divided by ``share``."""
    moves = counts.requests / share
    if isinstance(counts, SharedCounts):
        # A cp.async has an access of each space: its instruction is counted in the other.
        moves = 0.0 if access.instruction == "cp.async" else moves
        return Tally(waves=counts.wavefronts / share, moves=moves)
    if isinstance(access, TmaAccess):
        # A multicast is counted once for all CTAs that it serves.
        lines, sectors = float(counts.lines), float(counts.l2_sectors)
        loads = (access.direction == "load") / share
        return Tally(
            sectors=sectors / share, moves=moves, lines=lines / share,
            straddled=max(0.0, lines - counts.bytes / LINE) * loads,
            unaligned=max(0.0, sectors - counts.bytes / SECTOR) * loads,
            boxes=moves if access.unit == "CTA" else 0.0,
        )  # fmt: skip
    passes = max(counts.requests, counts.lines / 4)
    sectors = float(counts.l2_sectors)
    filled = counts.bytes / SECTOR
    if access.unit == "k-tile" and access.instruction != "cp.async":
        sectors = min(sectors, REUSE * filled)
    return Tally(
        passes=passes / share, sectors=sectors / share, moves=moves,
        partial=max(0.0, sectors - filled) / share,
    )  # fmt: skip


class Counts(NamedTuple):
    """What a CTA of a config asks of a multiprocessor, of which no time has been measured."""

    #: Extents of the CTA's tile along M, N and K.
    tile: tuple[int, int, int]
    #: CTAs of a cluster along M and N.
    cluster: tuple[int, int]
    #: Of a k-tile, those among them of B and its scales, and of the epilogue.
    each: Tally
    along_n: Tally
    end: Tally
    #: Multiply-adds of a k-tile, the unit that makes them, and the type by which its rate is known.
    multiplied: float
    unit: Unit
    rate: str
    #: Threads.
    block: int
    #: Whether the launch may start before the previous one has ended.
    dependent: bool
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: Loads of the epilogue's own operands.
    operand_loads: float
    #: Clocks of the epilogue for values beyond its registers.
    spills: float
    #: Products of a batch that it computes.
    products: int

    def with_accesses(self, tallies: Mapping[str, Mapping[str, Tally]]) -> Counts:
        """Return these with the accesses of the operands, by their names (`tally`)."""
        each, along_n, end = Tally(), Tally(), Tally()
        operand_loads = 0.0
        for name, tallied in tallies.items():
            each, end = each + tallied["k-tile"], end + tallied["CTA"]
            if name in ("B", "scale_b"):
                along_n += tallied["k-tile"]
            if name not in ("A", "B", "C"):
                operand_loads += tallied["CTA"].moves
        return self._replace(each=each, along_n=along_n, end=end, operand_loads=operand_loads)


def counted(
    config: Any, work: Work, launch: Launch, gpu: Gpu, accumulator_bytes: int, spills: float,
    depth: int,
) -> Counts:  # fmt: skip
    """Return what a CTA asks beside its operands' accesses: see `Counts.with_accesses`.

    ``work``: of a `sample`; ``accumulator_bytes``: of one element; ``depth``: k-tiles of the
    sample.
    """
    sums = config.products * config.tile[0] * config.tile[1] * accumulator_bytes // 4
    registers = min(sums // launch.block + REGISTERS, 255)
    sm, resident = gpu.arch.multiprocessor, 1
    if sm is not None:
        by_shape = occupancy(sm, launch.block, None, launch.smem).ctas_per_sm
        by_registers = occupancy(sm, launch.block, registers, launch.smem).ctas_per_sm
        resident = max(1, by_registers, min(config.min_ctas, by_shape))
    multiplied = work.products / work.ctas / depth
    return Counts(
        config.tile, config.cluster, Tally(), Tally(), Tally(), multiplied, work.unit, work.rate,
        launch.block, launch.dependent, resident, 0.0, spills, config.products,
    )  # fmt: skip


def _together(units: Mapping[str, float], pace: Pace) -> float:
    """The clocks of all units but TMA together, each of which takes its part of them."""
    power = ASYNCHRONOUS if pace.wgmma else TOGETHER
    return sum(clocks**power for name, clocks in units.items() if name != "TMA") ** (1 / power)


def footprint(counts: Counts, pace: Pace, constants: Constants, gpu: Gpu) -> Footprint:
    """Return what a CTA costs, from what it asks, its kernel's pace and the GPU's constants."""
    each, end, tile = counts.each, counts.end, counts.tile
    clocks = gpu.sms * gpu.clock_ghz * 1e9
    # GeForce cards list no float64 rate for tensor cores: the other unit's is taken.
    peak = gpu.peak(counts.rate, counts.unit) or gpu.peak(counts.rate)
    peak = peak or gpu.peak("float32", "CUDA cores")
    assert peak is not None
    rate = peak.tflops * 1e12 / 2 / clocks
    if counts.unit == "tensor cores" and counts.rate != "float64" and not pace.wgmma:
        rate *= gpu.arch.mma_sync_part(counts.rate)
    units: dict[str, float] = {
        counts.unit: counts.multiplied / rate * pace.slowdown,
        "shared memory": each.waves * constants.wavefront,
        "L1": each.passes * pace.passes,
        "TMA": (
            each.lines
            - (1 - constants.straddled) * each.straddled
            + constants.unaligned * each.unaligned
        )
        * (constants.tma_line * pace.tma),
        "instruction issue": each.moves * pace.issue / 4 + pace.adds * tile[0] * tile[1] / 32 / 4,
    }
    if counts.unit == "CUDA cores":
        units["instruction issue"] += counts.multiplied / 32 / 4
    alone = pace.serial * _together(units, pace) * 128 / counts.block
    units[counts.unit] *= max(1.0, pace.least_slowdown / pace.slowdown)
    if counts.block < 128:  # each quarter of a multiprocessor multiplies for its own warps
        alone = max(alone, units[counts.unit] * 128 / counts.block)
    return Footprint(
        tile=tile,
        busy=_together(units, pace),
        alone=pace.latency + pace.waits * constants.wait + alone,
        cover=pace.memory / pace.ahead if pace.ahead else 0.0,
        end=constants.end * (end.waves + end.passes + end.lines)
        + constants.partial * pace.partial * end.partial
        + pace.box * end.boxes
        + counts.spills
        + constants.operand_load * counts.operand_loads,
        bytes_m=(each.sectors - counts.along_n.sectors) * SECTOR,
        bytes_n=counts.along_n.sectors * SECTOR,
        end_bytes=end.sectors * SECTOR,
        resident=counts.resident,
        units=tuple(units.items()),
        pace=pace,
        cluster=counts.cluster,
        launch=constants.launch(counts.dependent, counts.block, counts.cluster != (1, 1)),
        products=counts.products,
        constants=constants,
    )
