"""What a config will cost on a problem: a predicted time, from the counts that the report shows.

A CTA's k-tile keeps each unit of a multiprocessor busy for as many clocks as its accesses and
products take (`Footprint`, from the counted accesses of one tile). From there on a price is
arithmetic on the problem's extents: how many CTAs the busiest multiprocessor gets, how many of them
are resident at a time, whether they keep the units busy or wait for themselves, and what L2 and
DRAM move meanwhile.

How well a kernel does that is its `Pace`, and the constants below are the GPU's: both were fitted
to 1,110 times of 43 kernels and types on an H200 (rms error 13 % for those that are chosen from),
what only `thin` has to later ones, and what only `sm90_wgmma` has to 6,650 of its own (13 %).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.access import GlobalAccess, SharedAccess, TmaAccess
from cute_gemm.gpus.occupancy import clusters_at_a_time, occupancy
from cute_gemm.model.analyze import analyze
from cute_gemm.model.gmem import LINE, SECTOR
from cute_gemm.model.smem import SharedCounts
from cute_gemm.problem.dtypes import DTYPES

if TYPE_CHECKING:
    from cute_gemm.access import Access, Work
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.problem import GemmProblem, Matrix
    from cute_gemm.toolchain.signature import Launch

#: Of a launch: microseconds before its first and after its last instruction; the same of one that
#: may start before the launch ahead has ended.
LAUNCH_US, DEPENDENT_US = 2.9, 2.0
#: Clocks that a CTA takes to start; for each wavefront or pass of its way to C; for a wavefront and
#: for a pass through L1's tags in the main loop; for a load that nothing hides.
START, END, WAVEFRONT, PASS, WAIT = 250.0, 2.5, 1.09, 1.14, 645.0
#: Clocks of a sector of L2 that is written only in part, on the way to C.
PARTIAL = 3.3
#: Clocks of the TMA unit for a line of L2 that a row of a box touches; and as how many lines L2
#: takes one, of a load, that the row's bytes alone would not ask for.
TMA_LINE, STRADDLED = 1.4, 1.69
#: Clocks from global to shared memory under load: what tiles that are on their way must cover.
MEMORY = 1180.0
#: Bytes of L2 per clock and multiprocessor; part of DRAM's bandwidth that is had by most kernels.
L2_BYTES, DRAM_PART = 54.5, 0.63
#: Sectors of L2 that a k-tile's loads through L1 take at most, over those that its bytes fill: what
#: one load of a sector leaves, the next finds in L1.
REUSE = 1.5
#: Registers of a thread beside its sums.
REGISTERS = 88
#: The power in which units' clocks add up: the higher, the less they are in each other's way. Of
#: those that warps keep busy by turns; and of TMA and wgmma, which go on by themselves.
TOGETHER, ASYNCHRONOUS = 3, 6
#: k-tiles of the sample whose accesses are counted.
DEPTH = 4


class Pace(NamedTuple):
    """How a kernel gets on: fitted to measured times, but for ``waits`` and ``ahead``.

    ``slowdown``: clocks of its products over those at its instruction's peak rate; ``latency``:
    clocks of a k-tile that nothing overlaps in a lone CTA; ``serial``: part of a warp's own work
    that the CTA's other warps do not overlap; ``waits``: loads of a k-tile that are waited for one
    by one; ``ahead``: k-tiles that are on their way at a time, 0 where a CTA waits for each;
    ``issue``: instructions of an access, with those for its address and its predicate; ``wgmma``:
    that instruction multiplies, at the tensor cores' full rate, of which its reads of shared memory
    are a part; ``dram``: part of DRAM's bandwidth that is had; ``passes``: clocks of a pass through
    L1's tags; ``start``: clocks that a CTA takes to start; ``box``: clocks of a box of C;
    ``memory``: clocks from global to shared memory under load; ``l2``: bytes of L2 per clock and
    multiprocessor; ``exposed``: part of a tile's start and end that the products of the next do not
    hide; ``lone``: how much more clocks its k-tiles take where there is no next.
    """

    slowdown: float = 1.5
    latency: float = 450.0
    serial: float = 0.6
    waits: float = 0.0
    ahead: int = 0
    issue: float = 1.0
    wgmma: bool = False
    dram: float = DRAM_PART
    passes: float = PASS
    start: float = START
    box: float = 0.0
    memory: float = MEMORY
    l2: float = L2_BYTES
    exposed: float = 1.0
    lone: float = 1.0


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one CTA of a config costs a multiprocessor, whatever the problem's extents.

    ``busy``: clocks of a k-tile when others fill the gaps; ``alone``: clocks that it takes at
    least; ``cover``: clocks until the next one has come; ``end``: clocks of the way to C;
    ``tile_bytes`` and ``end_bytes``: of L2, per k-tile and per CTA; ``resident``: CTAs of a
    multiprocessor; ``units``: clocks of a k-tile by unit, of which ``busy`` is made; ``dram``: part
    of DRAM's bandwidth that is had; ``cluster``: CTAs along M and N that go together; ``start``:
    clocks that a CTA takes to start; ``launch``: microseconds of the launch; ``l2``,
    ``exposed`` and ``lone``: see `Pace`.
    """

    tile: tuple[int, int, int]
    busy: float
    alone: float
    cover: float
    end: float
    tile_bytes: float
    end_bytes: float
    resident: int
    units: tuple[tuple[str, float], ...]
    dram: float = DRAM_PART
    cluster: tuple[int, int] = (1, 1)
    start: float = START
    launch: float = LAUNCH_US
    l2: float = L2_BYTES
    exposed: float = 1.0
    lone: float = 1.0


@dataclass(frozen=True, slots=True)
class Price:
    """A predicted time in seconds, and what it is made of.

    ``terms``: seconds of each unit if it were all (``"tensor cores"``, ``"shared memory"``,
    ``"L1"``, ``"TMA"``, ``"instruction issue"``; ``"waiting"`` of CTAs for themselves; ``"L2"``,
    ``"DRAM"``, ``"start"``); ``ctas``: of the launch; ``resident``: of a multiprocessor at a
    time; ``rounds``: how often the busiest multiprocessor is filled; ``full``: the part of its
    places that the last round fills.
    """

    seconds: float
    terms: dict[str, float]
    ctas: int
    resident: int
    rounds: int
    full: float

    @property
    def binding(self) -> str:
        """The largest term."""
        return self.largest(1)[0][0]

    def behind(self, passes: dict[str, float]) -> Price:
        """Return this price with passes before or behind it."""
        more = sum(passes.values())
        return replace(self, seconds=self.seconds + more, terms={**self.terms, **passes})

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the largest terms, with their seconds."""
        return sorted(self.terms.items(), key=lambda term: -term[1])[:count]


def sample(
    problem: GemmProblem, tile: tuple[int, int, int], cluster: tuple[int, int] = (1, 1)
) -> GemmProblem:
    """Return a problem of one cluster and `DEPTH` k-tiles, its matrices laid out as these are.

    Of a matrix it has what counts depend on, and nothing else: type, major, and alignment and
    leading dimension up to a line of L2. So problems of one class have one sample.
    """
    m, n, k = tile[0] * cluster[0], tile[1] * cluster[1], DEPTH * tile[2]

    def part(matrix: Matrix, shape: tuple[int, int]) -> Matrix:
        size = DTYPES[matrix.dtype].bytes
        ld = ((pitch(matrix) or LINE) + (LINE << 10)) // size if matrix.ld else 0
        stride = (1, ld) if matrix.unit == 0 else (ld, 1)
        return replace(
            matrix, shape=shape, stride=stride, alignment=min(matrix.alignment, LINE), l=1,
            batch_stride=0, first_alignment=0, slices=1, slice_stride=0,
        )  # fmt: skip

    A, B, C = part(problem.A, (m, k)), part(problem.B, (n, k)), part(problem.C, (m, n))
    operands = tuple(part(matrix, (m, n)) for matrix in problem.operands)
    return replace(problem, m=m, n=n, k=k, l=1, A=A, B=B, C=C, k_last=0, operands=operands)


def pitch(matrix: Matrix) -> int:
    """Return the bytes up to a line of L2 that divide the steps between rows; 0 of a single one.

    The rows of a tile begin at all multiples of it: more than that the counts do not depend on.
    """
    if matrix.shape[1 - matrix.unit] <= 1:
        return 0
    return gcd(matrix.ld * DTYPES[matrix.dtype].bytes, LINE)


class Tally(NamedTuple):
    """What is counted of an operand, per k-tile or CTA: wavefronts, passes of L1, sectors of L2.

    ``lines``: of L2 that TMA asks for; ``moves``: instructions; ``partial``: sectors that a warp
    reads or writes beyond those that its bytes fill; ``boxes``: of C that TMA moves.
    """

    waves: float = 0.0
    passes: float = 0.0
    sectors: float = 0.0
    moves: float = 0.0
    lines: float = 0.0
    partial: float = 0.0
    boxes: float = 0.0

    def __add__(self, other: Tally) -> Tally:  # type: ignore[override]
        return Tally(*map(sum, zip(self, other, strict=True)))


def _at_ends(access: Access) -> bool:
    """Whether only those of a launch's CTAs make it that have an end of a matrix."""
    far = access.guard if isinstance(access, SharedAccess) else access
    return isinstance(far, GlobalAccess) and far.words and far.tail == "elements"


def tally(accesses: Iterable[Access], ctas: int = 1) -> dict[str, Tally]:
    """Sum the counts of an operand's accesses in a `sample`, by ``"k-tile"`` and ``"CTA"``.

    ``ctas``: of the sample, among which they are divided.
    """
    found = {"k-tile": Tally(), "CTA": Tally()}
    for access in accesses:
        # wgmma's reads are part of its rate.
        if _at_ends(access) or access.instruction == "wgmma":
            continue
        counts = analyze(access).launch
        share = ctas * (DEPTH if access.unit == "k-tile" else 1)
        if isinstance(access, TmaAccess) and not isinstance(counts, SharedCounts):
            # A multicast asks once for all, which is how it is counted, and brings it to each.
            lines = float(counts.lines)
            sectors = float(counts.l2_sectors * access.multicast)
            if access.direction == "load":
                sectors += STRADDLED * max(0.0, lines - counts.bytes / LINE) * LINE / SECTOR
            moves = counts.requests / share
            boxes = moves if access.unit == "CTA" else 0.0
            found[access.unit] += Tally(
                0.0, 0.0, sectors / share, moves, lines / share, boxes=boxes
            )  # fmt: skip
            continue
        if isinstance(counts, SharedCounts):
            # A cp.async has an access of each space: its instruction is counted in the other.
            moves = 0 if access.instruction == "cp.async" else counts.requests
            one = Tally(waves=counts.wavefronts / share, moves=moves / share)
        else:
            passes = max(counts.requests, counts.lines / 4)
            sectors = float(counts.l2_sectors)
            if access.unit == "k-tile" and access.instruction != "cp.async":
                sectors = min(sectors, REUSE * counts.bytes / SECTOR)
            partial = max(0.0, sectors - counts.bytes / SECTOR)
            one = Tally(
                0.0, passes / share, sectors / share, counts.requests / share,
                partial=partial / share,
            )  # fmt: skip
        found[access.unit] += one
    return found


def footprint(
    tile: tuple[int, int, int],
    tallies: Iterable[dict[str, Tally]],
    work: Work,
    launch: Launch,
    pace: Pace,
    gpu: Gpu,
    sums: int,
    min_ctas: int,
    cluster: tuple[int, int] = (1, 1),
) -> Footprint:
    """Say what a CTA costs, from its operands' tallies and what a `sample` multiplies.

    ``sums``: bytes of an accumulator; ``min_ctas``: CTAs that registers are rationed for;
    ``cluster``: CTAs along M and N that go together.
    """
    each, end = Tally(), Tally()
    for one in tallies:
        each, end = each + one["k-tile"], end + one["CTA"]
    products = work.products / work.ctas / DEPTH
    clocks = gpu.sms * gpu.clock_ghz * 1e9
    # Tensor cores without a rate of their own have the other unit's: float64 on GeForce cards.
    peak = gpu.peak(work.rate, work.unit) or gpu.peak(work.rate)
    peak = peak or gpu.peak("float32", "CUDA cores")
    assert peak is not None
    rate = peak.tflops * 1e12 / 2 / clocks
    if work.unit == "tensor cores" and work.rate != "float64" and not pace.wgmma:
        rate *= gpu.arch.mma_sync_part
    units = {
        work.unit: products / rate * pace.slowdown,
        "shared memory": each.waves * WAVEFRONT,
        "L1": each.passes * pace.passes,
        "TMA": each.lines * TMA_LINE,
        "instruction issue": each.moves * pace.issue / 4,
    }
    if work.unit == "CUDA cores":
        units["instruction issue"] += products / 32 / 4
    power = ASYNCHRONOUS if pace.wgmma else TOGETHER
    busy = sum(clock**power for clock in units.values()) ** (1 / power)
    registers = min(tile[0] * tile[1] * sums // 4 // launch.block + REGISTERS, 255)
    sm, resident = gpu.arch.multiprocessor, 1
    if sm is not None:
        by_shape = occupancy(sm, launch.block, None, launch.smem).ctas_per_sm
        by_registers = occupancy(sm, launch.block, registers, launch.smem).ctas_per_sm
        resident = max(1, by_registers, min(min_ctas, by_shape))
    alone = pace.serial * busy * 128 / launch.block
    if launch.block < 128:  # a multiprocessor's quarters multiply each for its own warps
        alone = max(alone, units[work.unit] * 128 / launch.block)
    return Footprint(
        tile=tile,
        busy=busy,
        alone=pace.latency + pace.waits * WAIT + alone,
        cover=pace.memory / pace.ahead if pace.ahead else 0.0,
        end=END * (end.waves + end.passes + end.lines)
        + PARTIAL * end.partial
        + pace.box * end.boxes,
        tile_bytes=each.sectors * SECTOR,
        end_bytes=end.sectors * SECTOR,
        resident=resident,
        units=tuple(units.items()),
        dram=pace.dram,
        cluster=cluster,
        start=pace.start,
        l2=pace.l2,
        exposed=pace.exposed,
        lone=pace.lone,
        launch=DEPENDENT_US if launch.dependent else LAUNCH_US,
    )


class Prices:
    """Footprints side by side, so that all are priced at once."""

    __slots__ = ("_columns", "_gpu", "footprints")

    def __init__(self, footprints: Sequence[Footprint], gpu: Gpu) -> None:
        self.footprints = tuple(footprints)
        self._gpu = gpu
        rows = [
            (
                f.tile[0] * f.cluster[0],
                f.tile[1] * f.cluster[1],
                f.tile[2],
                f.cluster[0] * f.cluster[1],
                _places(gpu, f.cluster),
                f.busy,
                f.alone**3 + f.cover**3,
                f.end,
                f.tile_bytes,
                f.end_bytes,
                f.resident,
                f.dram,
                f.start,
                f.launch * 1e-6,
                f.l2,
                f.exposed,
                f.lone,
            )
            for f in footprints
        ]
        self._columns = tuple(np.array(rows, float).T) if rows else ()

    def seconds(self, problem: GemmProblem, slices: Any = 1) -> np.ndarray:
        """Return the predicted time of each, in seconds; of a batch of ``slices`` of K."""
        return self._times(problem, slices, *self._columns)[0]

    def price(self, problem: GemmProblem, index: int, slices: int = 1) -> Price:
        """Return one price with its terms."""
        gpu, one = self._gpu, self.footprints[index]
        column = (entry[index] for entry in self._columns)
        times = self._times(problem, slices, *column)
        total, most, filled, tiles, depth, l2 = map(float, times)
        clock = gpu.clock_ghz * 1e9
        rounds = -(-most // filled)
        terms = {unit: most * depth * clocks / clock for unit, clocks in one.units}
        terms["waiting"] = rounds * depth * float(np.cbrt(one.alone**3 + one.cover**3)) / clock
        terms |= {"L2": l2, "DRAM": self._dram(problem, one.dram), "start": one.launch * 1e-6}
        last = most - (rounds - 1) * filled
        return Price(
            total, terms, int(tiles), one.resident, int(rounds), last / filled if filled else 0.0
        )

    def _dram(self, problem: GemmProblem, part: Any) -> Any:
        moved = sum(matrix.nbytes for matrix in problem.matrices)
        return moved / (part * self._gpu.bandwidth_gbs * 1e9)

    def _times(
        self, problem: GemmProblem, slices: Any, bm: Any, bn: Any, bk: Any, cluster: Any,
        places: Any, busy: Any, waits: Any, end: Any, tile_bytes: Any, end_bytes: Any,
        resident: Any, part: Any, start: Any, launch: Any, l2_bytes: Any, exposed: Any, lone: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Of one or all: seconds, CTAs of the busiest SM, resident, all, k-tiles, L2 seconds.

        ``bm`` and ``bn`` are of a cluster. A new problem waits for this: few operations on arrays.
        """
        gpu = self._gpu
        clock = gpu.clock_ghz * 1e9
        tiles = np.ceil(problem.m / bm) * np.ceil(problem.n / bn) * (cluster * problem.l) * slices
        depth = np.ceil(problem.k / (bk * slices))
        most = np.ceil(tiles / places)
        filled = np.minimum(resident, np.maximum(most, 1))
        busy = np.where(most > 1, busy, busy * lone)
        whole = np.floor(most / filled)
        rest = most - whole * filled

        def together(ctas: Any, rounds: Any) -> Any:
            main = depth * np.cbrt(_cube(ctas * busy) + waits)
            return rounds * main + (1 + exposed * (rounds - 1)) * (start + ctas * end)

        clocks = together(filled, whole) + np.where(rest > 0, together(rest, 1), 0.0)
        on_sm = clocks / clock
        l2 = (tile_bytes * depth + end_bytes) * tiles / (l2_bytes * gpu.sms * clock)
        dram = self._dram(problem, part)
        seconds = launch + np.cbrt(_cube(on_sm) + _cube(l2) + _cube(dram))
        return seconds, most, filled, tiles, depth, l2


def _places(gpu: Gpu, cluster: tuple[int, int]) -> int:
    """Multiprocessors that clusters use."""
    ctas = cluster[0] * cluster[1]
    return clusters_at_a_time(gpu.sms, ctas) * ctas


def _cube(x: Any) -> Any:
    return x * x * x  # a tenth of what x**3 takes
