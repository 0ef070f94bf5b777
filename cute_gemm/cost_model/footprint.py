"""The demand of one CTA of a config on a multiprocessor, from the counts that the report shows.

A `Footprint` holds the clocks for which a k-tile of a CTA keeps each unit of a multiprocessor busy.
It is computed from the accesses of one tile (`sample`, `tally`) and does not depend on the
problem's extents. `cost_model.prediction` converts footprints and extents to seconds.

Numbers that counts do not contain, such as the clocks of a wavefront or how well a kernel overlaps
loads and products, are fitted to times measured on a GPU: its `Calibration`
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

#: Most sectors of L2 for a k-tile's loads through L1, relative to those that its bytes fill: the
#: next load finds the rest of a sector in L1.
REUSE = 1.5
#: Registers of a thread besides its accumulators.
REGISTERS = 88
#: Exponent of the norm that adds the clocks of units: a higher one means more overlap. The first is
#: for units that warps issue to in turn, the second for TMA and wgmma, which run asynchronously.
TOGETHER, ASYNCHRONOUS = 3, 6
#: Clocks until an operand of an epilogue with fewer elements than C arrives, mostly from L1, and
#: clocks of the functions of one result, of the threads of a multiprocessor together.
NEAR, FUNCTION = 400, 110
#: Accesses of C and of operands that a thread loads before it stores the first (``kTogether``).
LOADED = 4
#: Number of k-tiles of a sample.
DEPTH = 4


@dataclass(frozen=True, slots=True)
class Footprint:
    """The demand of one CTA of a config on a multiprocessor, for all extents of the problem."""

    #: Extents of the CTA's tile along M, N and K.
    tile: tuple[int, int, int]
    #: Clocks of a k-tile if other CTAs fill its gaps, on all units except TMA.
    busy: float
    #: Least clocks of a k-tile if its CTA is the only one.
    alone: float
    #: Clocks until the next k-tile has arrived.
    cover: float
    #: Clocks of the epilogue.
    end: float
    #: Clocks until a CTA begins to multiply, and clocks of its epilogue, that other CTAs fill.
    start: float
    #: Bytes of L2 of a k-tile: of A and data along M, and of B and data along N.
    bytes_m: float
    bytes_n: float
    #: Bytes of L2 of the epilogue.
    end_bytes: float
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: Clocks of a k-tile on each unit; TMA's if all rows of its boxes were inside A and B.
    units: tuple[tuple[str, float], ...]
    #: Pace of the kernel.
    pace: Pace
    #: CTAs of a cluster along M and N.
    cluster: tuple[int, int]
    #: Microseconds of the launch.
    launch: float
    #: Products of a batch that a CTA computes.
    products: int = 1
    #: Constants of the GPU.
    constants: Constants = field(kw_only=True)

    @property
    def outside(self) -> float:
        """Clocks of the TMA unit for a row of a box outside its matrix."""
        return self.constants.outside if self.pace.wgmma else 0.0

    @property
    def tma(self) -> float:
        """Clocks of a k-tile on the TMA unit."""
        return dict(self.units)["TMA"]

    @property
    def latency_cubed(self) -> float:
        """Cube of the clocks of a k-tile that other CTAs do not shorten, for sums of cubes."""
        return self.alone**3 + self.cover**3


def sample(
    problem: GemmProblem, tile: tuple[int, int, int], ctas: tuple[int, int] = (1, 1)
) -> GemmProblem:
    """Return a problem of ``ctas`` tiles and `DEPTH` k-tiles, with matrices laid out as these.

    Its matrices keep only the properties that counts depend on: type, major, and alignment and
    leading dimension modulo a line of L2. All problems of a class have the same sample.
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

    The rows of a tile begin at its multiples, and counts depend on no other property of the leading
    dimension. It is 0 for a matrix of a single row.
    """
    if matrix.shape[1 - matrix.unit] <= 1:
        return 0
    return gcd(matrix.ld * DTYPES[matrix.dtype].bytes, LINE)


def steps(matrix: Matrix) -> tuple[int, int]:
    """Return strides of block scales with the same counts as the actual strides.

    Rows a line or more apart lie in separate lines, and k tiles begin at multiples of the greatest
    common divisor of their step and a line.
    """
    line = LINE // DTYPES[matrix.dtype].bytes
    return min(matrix.stride[0], line), gcd(matrix.stride[1], line)


class Tally(NamedTuple):
    """Counts of an operand's accesses, per k-tile or per CTA."""

    #: Wavefronts in shared memory.
    waves: float = 0.0
    #: L1 tag passes.
    passes: float = 0.0
    #: Sectors of L2.
    sectors: float = 0.0
    #: Instructions.
    moves: float = 0.0
    #: Lines of L2 that TMA requests.
    lines: float = 0.0
    #: Sectors that a warp touches in excess of those that its bytes fill.
    partial: float = 0.0
    #: Lines, and sectors, of L2 that TMA loads request in excess of those that their bytes fill.
    straddled: float = 0.0
    unaligned: float = 0.0
    #: Boxes of C that TMA moves.
    boxes: float = 0.0

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally._make(map(add, self, other))


def _at_ends(access: Access) -> bool:
    """Return whether only CTAs at an end of a matrix make this access."""
    guard = access.guard if isinstance(access, SharedAccess) else access
    return guard is not None and guard.words and guard.tail == "elements"


def tally(
    accesses: Iterable[Access], ctas: int = 1, ideal: Collection[Kind] = (), depth: int = DEPTH
) -> dict[str, Tally]:
    """Sum the counts of an operand's accesses in a `sample`, by ``"k-tile"`` and ``"CTA"``.

    ``ctas``: CTAs of the sample, the divisor of the counts; ``ideal``: accesses to count as if they
    were ideal (`cost_model.ideal`); ``depth``: k-tiles of the sample.
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
        # A cp.async has an access of each space: its instruction is counted with the other one.
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


class Updates(NamedTuple):
    """The parts of an epilogue that a thread does one after the other.

    ``matrices``: groups of loads that it waits for if it reads C or an operand of C's shape;
    ``vectors``: the same if it reads smaller operands; ``results``: results that it computes
    functions of.
    """

    matrices: int = 0
    vectors: int = 0
    results: int = 0


class Counts(NamedTuple):
    """The demand of a CTA of a config on a multiprocessor, without measured numbers."""

    #: Extents of the CTA's tile along M, N and K.
    tile: tuple[int, int, int]
    #: CTAs of a cluster along M and N.
    cluster: tuple[int, int]
    #: Counts of a k-tile, the part of B and its block scales, and counts of the epilogue.
    each: Tally
    along_n: Tally
    end: Tally
    #: Multiply-adds of a k-tile, the unit that computes them, and the type for its rate.
    multiplied: float
    unit: Unit
    rate: str
    #: Threads.
    block: int
    #: Whether the launch may start before the previous one has ended.
    dependent: bool
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: Loads of the epilogue's operands.
    operand_loads: float
    #: Clocks of the epilogue for values that exceed its registers.
    spills: float
    #: Products of a batch that a CTA computes.
    products: int
    #: The parts of the epilogue of a thread; those that it does not have are 0.
    updates: Updates = Updates()

    def with_accesses(self, tallies: Mapping[str, Mapping[str, Tally]]) -> Counts:
        """Return these counts with the operands' accesses added, by names of operands (`tally`)."""
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
    """Return the demand of a CTA without its operands' accesses: see `Counts.with_accesses`.

    ``work``: work of a `sample`; ``accumulator_bytes``: bytes of one accumulator; ``depth``:
    k-tiles of the sample.
    """
    accumulators = config.products * config.tile[0] * config.tile[1] * accumulator_bytes // 4
    registers = min(accumulators // launch.block + REGISTERS, 255)
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
    """Return the combined clocks of all units except TMA."""
    power = ASYNCHRONOUS if pace.wgmma else TOGETHER
    return sum(clocks**power for name, clocks in units.items() if name != "TMA") ** (1 / power)


def footprint(counts: Counts, pace: Pace, constants: Constants, gpu: Gpu) -> Footprint:
    """Return the footprint of a CTA from its counts, the kernel's pace and the GPU's constants."""
    each, end, tile = counts.each, counts.end, counts.tile
    clocks = gpu.sms * gpu.clock_ghz * 1e9
    # GeForce cards have no float64 rate for tensor cores: take the other unit's.
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
        start=pace.start
        + constants.wait * counts.updates.matrices
        + NEAR * counts.updates.vectors
        + FUNCTION * counts.updates.results,
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
