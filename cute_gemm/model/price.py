"""The predicted time of a config on a problem, computed from the counts that the report shows.

A `Footprint` holds the clocks that one k-tile of a CTA keeps each unit of a multiprocessor busy; it
comes from the accesses of one tile (`sample`, `tally`) and does not depend on the problem's
extents. `Prices` turns footprints and extents into seconds: the CTAs of the busiest multiprocessor,
how many of them are resident at a time, whether their work or their latency is longer, and the time
that L2 and DRAM take for the bytes moved.

What counts do not say, such as the clocks of a wavefront or how well a kernel overlaps loads and
products, is fitted to times that were measured on a GPU: its `Calibration` (`model.calibration`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.access import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.dtypes import DTYPES
from cute_gemm.gpus.occupancy import clusters_at_a_time, occupancy
from cute_gemm.model.analyze import analyze
from cute_gemm.model.calibration import Constants, Pace
from cute_gemm.model.gmem import LINE, SECTOR
from cute_gemm.model.ideal import Kind, ideal_counts, kind_of
from cute_gemm.model.smem import SharedCounts
from cute_gemm.problem.scaling import BLOCK

if TYPE_CHECKING:
    from cute_gemm.access import Access, Work
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


@dataclass(frozen=True, slots=True)
class Price:
    """A predicted time, and the terms that it is made of."""

    #: Predicted time of the launch, with the passes before and behind it.
    seconds: float
    #: Seconds of each unit if it were the only one: ``"tensor cores"`` or ``"CUDA cores"``,
    #: ``"shared memory"``, ``"L1"``, ``"TMA"``, ``"instruction issue"``, ``"L2"``, ``"DRAM"``;
    #: ``"waiting"`` for latency, ``"launch overhead"``, and of passes by their names.
    terms: dict[str, float]
    #: CTAs of the launch.
    ctas: int
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: How often the busiest multiprocessor is filled.
    rounds: int
    #: Part of its places that the last round fills, 0 to 1.
    full: float

    @property
    def binding(self) -> str:
        """Name of the largest term."""
        return self.largest(1)[0][0]

    def behind(self, passes: dict[str, float]) -> Price:
        """Return this price with the seconds of passes before or behind the launch, by name."""
        seconds = self.seconds + sum(passes.values())
        return replace(self, seconds=seconds, terms={**self.terms, **passes})

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the ``count`` largest terms with their seconds, the largest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])[:count]


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
        ragged="", offsets=None,
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
    return isinstance(guard, GlobalAccess) and guard.words and guard.tail == "elements"


def tally(
    accesses: Iterable[Access], ctas: int = 1, ideal: Collection[Kind] = (), depth: int = DEPTH
) -> dict[str, Tally]:
    """Sum the counts of an operand's accesses in a `sample`, by ``"k-tile"`` and ``"CTA"``.

    ``ctas``: CTAs of the sample, by whose number the counts are divided; ``ideal``: accesses that
    are counted as if they were as good as an access can be (`model.ideal`); ``depth``: k-tiles of
    the sample.
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
    operand_loads: float = 0.0
    #: Clocks of the epilogue for values beyond its registers.
    spills: float = 0.0
    #: Products of a batch that it computes.
    products: int = 1


def counted(
    tile: tuple[int, int, int],
    tallies: Mapping[str, dict[str, Tally]],
    work: Work,
    launch: Launch,
    gpu: Gpu,
    accumulator_bytes: int,
    min_ctas: int,
    cluster: tuple[int, int] = (1, 1),
    operand_loads: float = 0.0,
    spills: float = 0.0,
    depth: int = DEPTH,
    products: int = 1,
) -> Counts:
    """Return what a CTA asks, from its operands' tallies and what a `sample` multiplies.

    ``accumulator_bytes``: of one element; ``min_ctas``: CTAs of a multiprocessor that the compiler
    is told to leave registers for; ``cluster``: CTAs along M and N; ``depth``: k-tiles of the
    sample; ``products``: products of a batch that a CTA computes.
    """
    each, along_n, end = Tally(), Tally(), Tally()
    for name, tallied in tallies.items():
        each, end = each + tallied["k-tile"], end + tallied["CTA"]
        if name in ("B", "scale_b"):
            along_n += tallied["k-tile"]
    sums = products * tile[0] * tile[1] * accumulator_bytes // 4
    registers = min(sums // launch.block + REGISTERS, 255)
    sm, resident = gpu.arch.multiprocessor, 1
    if sm is not None:
        by_shape = occupancy(sm, launch.block, None, launch.smem).ctas_per_sm
        by_registers = occupancy(sm, launch.block, registers, launch.smem).ctas_per_sm
        resident = max(1, by_registers, min(min_ctas, by_shape))
    multiplied = work.products / work.ctas / depth
    return Counts(
        tile, cluster, each, along_n, end, multiplied, work.unit, work.rate, launch.block,
        launch.dependent, resident, operand_loads, spills, products,
    )  # fmt: skip


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
    power = ASYNCHRONOUS if pace.wgmma else TOGETHER
    busy = sum(clocks**power for name, clocks in units.items() if name != "TMA") ** (1 / power)
    alone = pace.serial * busy * 128 / counts.block
    if counts.block < 128:  # each quarter of a multiprocessor multiplies for its own warps
        alone = max(alone, units[counts.unit] * 128 / counts.block)
    return Footprint(
        tile=tile,
        busy=busy,
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


class _Costs(NamedTuple):
    """What times depend on of a footprint and a GPU; for several footprints, an array of each.

    Clocks are in seconds here: few operations are left for a problem.
    """

    #: Extents of a cluster along M and N, and of a tile.
    cluster_m: Any
    cluster_n: Any
    tile_m: Any
    tile_n: Any
    tile_k: Any
    #: CTAs of a cluster.
    cluster_ctas: Any
    #: Multiprocessors that clusters of this size can occupy.
    sms: Any
    #: CTAs of a multiprocessor at a time, and products of a batch that one computes.
    resident: Any
    products: Any
    #: Seconds of a k-tile where others fill its gaps, and where a multiprocessor has one CTA.
    busy: Any
    lone: Any
    #: Seconds of a k-tile on the TMA unit, and more of each row of its boxes outside of A and B.
    tma: Any
    outside: Any
    #: `Footprint.latency_cubed`, starts and ends of CTAs, and the part of them that is exposed.
    latency_cubed: Any
    start: Any
    end: Any
    exposed: Any
    #: Seconds of L2 for a k-tile of A, of B, and for the end of a CTA, where all of their rows are
    #: inside; of DRAM for a byte, and of the launch.
    l2_m: Any
    l2_n: Any
    l2_end: Any
    dram: Any
    launch: Any


def _costs(footprint: Footprint, gpu: Gpu) -> tuple[float, ...]:
    """Return the fields of `_Costs` for one footprint."""
    (m, n, k), (along_m, along_n), pace = footprint.tile, footprint.cluster, footprint.pace
    ctas, clock = along_m * along_n, gpu.clock_ghz * 1e9
    sms = clusters_at_a_time(gpu.sms, ctas) * ctas
    l2 = pace.l2 * gpu.sms * clock
    return (
        m * along_m, n * along_n, m, n, k, ctas, sms, footprint.resident, footprint.products,
        footprint.busy / clock, footprint.busy * pace.lone / clock,
        footprint.tma / clock, footprint.outside / clock,
        footprint.latency_cubed / clock**3, pace.start / clock, footprint.end / clock, pace.exposed,
        footprint.bytes_m / l2, footprint.bytes_n / l2, footprint.end_bytes / l2,
        1 / (pace.dram * gpu.bandwidth_gbs * 1e9),
        footprint.launch * 1e-6,
    )  # fmt: skip


class Extents(NamedTuple):
    """What the price of a footprint depends on beside it; of several problems, an array of each."""

    m: Any
    n: Any
    k: Any
    #: Products of a batch, or groups of a grouped GEMM.
    l: Any
    #: Bytes of all matrices.
    moved: Any
    #: The mode along which groups lie.
    ragged: str = ""

    @classmethod
    def of(cls, problem: GemmProblem) -> Extents:
        """Return those of a problem."""
        moved = sum(matrix.nbytes for matrix in problem.matrices)
        return cls(problem.m, problem.n, problem.k, problem.l, moved, problem.ragged)


class _Times(NamedTuple):
    """What `Prices` computes of a problem, for one footprint or for all."""

    #: Predicted time of the launch.
    seconds: Any
    #: CTAs of the busiest multiprocessor, and how many of them are resident at a time.
    sm_ctas: Any
    resident: Any
    #: CTAs of the launch, and k-tiles of each.
    ctas: Any
    k_tiles: Any
    #: Seconds of L2 and of DRAM if they were all.
    l2: Any
    dram: Any


class Prices:
    """The prices of many footprints on one GPU, computed for all at once."""

    __slots__ = ("_costs", "_gpu", "footprints")

    def __init__(
        self, footprints: Sequence[Footprint], gpu: Gpu, costs: _Costs | None = None
    ) -> None:
        self.footprints = tuple(footprints)
        self._gpu = gpu
        if costs is None:
            rows = [_costs(footprint, gpu) for footprint in footprints]
            costs = _Costs(*np.array(rows, float).reshape(-1, len(_Costs._fields)).T)
        self._costs = costs

    def __len__(self) -> int:
        return len(self.footprints)

    def part(self, begin: int, end: int) -> Prices:
        """Return the prices of some of the footprints."""
        costs = _Costs(*(array[begin:end] for array in self._costs))
        return Prices(self.footprints[begin:end], self._gpu, costs)

    def of(self, places: Sequence[int]) -> Prices:
        """Return the prices of the footprints at these places, of each as often as it is there."""
        costs = _Costs(*(array[places] for array in self._costs))
        return Prices([self.footprints[place] for place in places], self._gpu, costs)

    def seconds(self, extents: Extents, slices: Any = 1) -> np.ndarray:
        """Return the predicted seconds of each footprint, K being cut into ``slices``.

        The shape is that of the footprints, broadcast with ``slices`` and with the extents.
        """
        return self._times(extents, slices, self._costs).seconds

    def price(self, problem: GemmProblem, index: int, slices: int = 1) -> Price:
        """Return the price of the footprint ``index`` with its terms."""
        gpu, footprint = self._gpu, self.footprints[index]
        costs = _Costs(*(array[index] for array in self._costs))
        times = _Times(*map(float, self._times(Extents.of(problem), slices, costs)))
        clock = gpu.clock_ghz * 1e9
        rounds = -(-times.sm_ctas // times.resident)
        terms = {
            unit: times.sm_ctas * times.k_tiles * clocks / clock for unit, clocks in footprint.units
        }
        if times.ctas <= costs.sms / 2:
            terms["TMA"] /= 2
        latency = float(np.cbrt(footprint.latency_cubed))
        terms["waiting"] = rounds * times.k_tiles * latency / clock
        terms |= {"L2": times.l2, "DRAM": times.dram, "launch overhead": footprint.launch * 1e-6}
        last = times.sm_ctas - (rounds - 1) * times.resident
        return Price(
            times.seconds, terms, int(times.ctas), footprint.resident, int(rounds),
            last / times.resident if times.resident else 0.0,
        )  # fmt: skip

    def _times(self, extents: Extents, slices: Any, costs: _Costs) -> _Times:
        """Compute the times of one footprint or of all.

        TMA takes half the clocks in a round in which at most half of the multiprocessors have a
        CTA, as if two of them shared their way to L2: inferred from times.
        The first call on a problem waits for this: few operations on arrays.
        """
        tiles_m = _tiles(extents, "M", costs.cluster_m)
        tiles_n = _tiles(extents, "N", costs.cluster_n)
        ctas = tiles_m * tiles_n * costs.cluster_ctas * slices
        if not (isinstance(extents.l, int) and extents.l == 1):
            ctas = ctas * np.ceil(extents.l / costs.products)
        k_tiles = _tiles(extents, "K", costs.tile_k * slices)
        sm_ctas = np.ceil(ctas / costs.sms)
        resident = np.minimum(costs.resident, np.maximum(sm_ctas, 1))
        # Parts of a cluster's tiles and of a k-tile that are inside of A and B, and rows outside in
        # a tile that has some inside, on average; all and none where sizes of groups are not known.
        part_m = part_n = part_k = 1.0
        tma = costs.tma
        if not extents.ragged:
            part_m = extents.m / np.maximum(tiles_m * costs.cluster_m, 1)
            part_n = extents.n / np.maximum(tiles_n * costs.cluster_n, 1)
            part_k = extents.k / np.maximum(k_tiles * slices * costs.tile_k, 1)
            outside_m = costs.tile_m - extents.m / np.maximum(np.ceil(extents.m / costs.tile_m), 1)
            outside_n = costs.tile_n - extents.n / np.maximum(np.ceil(extents.n / costs.tile_n), 1)
            tma = tma + costs.outside * (outside_m + outside_n)
        l2_tile = (costs.l2_m * part_m + costs.l2_n * part_n) * part_k

        def round_of(ctas: Any, busy: Any) -> tuple[Any, Any]:
            """Seconds of the k-tiles of so many CTAs at a time, and of their starts and ends."""
            main = k_tiles * np.cbrt(_cube(ctas * busy) + costs.latency_cubed)
            return main, costs.start + ctas * costs.end

        places = costs.sms * costs.resident
        before = np.maximum(np.ceil(ctas / places) - 1, 0)
        last_ctas = ctas - before * places
        main, ends = round_of(costs.resident, np.maximum(costs.busy, tma))
        busy = np.where(sm_ctas > 1, costs.busy, costs.lone)
        tma = np.where(last_ctas <= costs.sms / 2, tma / 2, tma)
        last, last_ends = round_of(np.ceil(last_ctas / costs.sms), np.maximum(busy, tma))
        on_sm = before * (main + costs.exposed * ends) + last + last_ends
        l2 = (l2_tile * k_tiles + costs.l2_end * part_m * part_n) * ctas
        dram = extents.moved * costs.dram
        seconds = costs.launch + last_ends
        if self.footprints:
            constants = self.footprints[0].constants
            idle = (1 - last_ctas / places) * last * constants.idle
            seconds = seconds + np.cbrt(_cube(on_sm - last_ends) + _cube(l2) + _cube(dram + idle))
            cold = 1.0 - np.exp(extents.moved * (-1e-6 / constants.cold_mb))
            seconds = seconds + constants.cold_us * 1e-6 * cold
        return _Times(seconds, sm_ctas, resident, ctas, k_tiles, l2, dram)


def _tiles(extents: Extents, mode: str, tile: Any) -> Any:
    """Return how many tiles of these extents a product, or a group of a grouped GEMM, has.

    The sizes of groups are on the device: they are taken to be spread evenly from none to twice
    their mean. So each fills half a tile more than it needs on average, and one at least.
    """
    extent = {"M": extents.m, "N": extents.n, "K": extents.k}[mode]
    if mode != extents.ragged:
        return np.ceil(extent / tile)
    return np.maximum(extent / extents.l / tile + 0.5, 1.0)


def _cube(x: Any) -> Any:
    return x * x * x  # takes a tenth of the time of x**3
