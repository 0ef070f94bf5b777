"""The predicted time of a config on a problem.

`Prices` turns footprints (`model.footprint`) and extents into seconds: the CTAs of the busiest
multiprocessor, how many of them are resident at a time, whether their work or their latency is
longer, and the time that L2 and DRAM take for the bytes moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.gpus.occupancy import clusters_at_a_time

if TYPE_CHECKING:
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.model.footprint import Footprint
    from cute_gemm.problem.problem import GemmProblem


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
    #: The factor of a `Correction` in ``seconds``.
    correction: float = 1.0

    @property
    def binding(self) -> str:
        """Name of the largest term."""
        return self.largest(1)[0][0]

    def behind(self, passes: dict[str, float]) -> Price:
        """Return this price with the seconds of passes before or behind the launch, by name."""
        seconds = self.seconds + sum(passes.values())
        return replace(self, seconds=seconds, terms={**self.terms, **passes})

    def corrected(self, factor: float) -> Price:
        """Return this price with its seconds times a factor; terms stay."""
        return replace(self, seconds=self.seconds * factor, correction=factor)

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the ``count`` largest terms with their seconds, the largest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])[:count]


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


class Times(NamedTuple):
    """What `Prices` computes of a problem, for one footprint or for all.

    Arrays have an axis of footprints, and may have one of numbers of slices before it.
    """

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

    def at(self, *places: np.ndarray) -> Times:
        """Return those of some footprints, of each with one of the numbers of slices."""
        return Times(*(x[places[-np.ndim(x) :]] for x in self))


#: What `Prices.features` returns: of a config; of its launch, with the part of its last round of
#: CTAs that is empty and the parts of its tiles that are inside of C; of its price, with parts of
#: the seconds.
FEATURES = (
    "tile M", "tile N", "tile K", "cluster M", "cluster N", "resident CTAs", "exposed", "lone",
    "slices", "k tiles", "rounds", "last round", "inside M", "inside N", "seconds",
    "L2", "DRAM", "launch", "start", "end", "busy", "TMA", "latency",
)  # fmt: skip


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

    def of(self, places: Sequence[int] | np.ndarray) -> Prices:
        """Return the prices of the footprints at these places, of each as often as it is there."""
        costs = _Costs(*(array[places] for array in self._costs))
        return Prices([self.footprints[place] for place in places], self._gpu, costs)

    def seconds(self, extents: Extents, slices: Any = 1) -> np.ndarray:
        """Return the predicted seconds of each footprint, K being cut into ``slices``.

        The shape is that of the footprints, broadcast with ``slices`` and with the extents.
        """
        return self.times(extents, slices).seconds

    def times(self, extents: Extents, slices: Any = 1) -> Times:
        """Return the predicted seconds of each footprint and what they are computed from."""
        return self._times(extents, slices, self._costs)

    def features(self, extents: Extents, slices: Any, times: Times) -> np.ndarray:
        """Return what a `Correction` depends on: a row of `FEATURES` for each footprint.

        ``extents`` and ``slices``: of all, or one for each; ``times``: with these.
        """
        costs = self._costs
        waves = times.ctas / (costs.sms * costs.resident)
        rounds = np.ceil(waves)
        k_tiles = times.k_tiles * rounds
        filled_m = _tiles(extents, "M", costs.cluster_m) * costs.cluster_m
        filled_n = _tiles(extents, "N", costs.cluster_n) * costs.cluster_n
        seconds = (
            times.l2, times.dram, costs.launch, costs.start, costs.end, costs.busy * k_tiles,
            costs.tma * k_tiles, np.cbrt(costs.latency_cubed) * k_tiles,
        )  # fmt: skip
        columns = (
            costs.tile_m, costs.tile_n, costs.tile_k, costs.cluster_m / costs.tile_m,
            costs.cluster_n / costs.tile_n, costs.resident, costs.exposed, costs.lone / costs.busy,
            slices, times.k_tiles, waves, waves - rounds, extents.m / filled_m,
            extents.n / filled_n, times.seconds, *(x / times.seconds for x in seconds),
        )  # fmt: skip
        rows = np.empty((len(self), len(FEATURES)))
        for place, column in enumerate(columns):
            rows[:, place] = column
        return rows

    def price(self, problem: GemmProblem, index: int, slices: int = 1) -> Price:
        """Return the price of the footprint ``index`` with its terms."""
        gpu, footprint = self._gpu, self.footprints[index]
        costs = _Costs(*(array[index] for array in self._costs))
        times = Times(*map(float, self._times(Extents.of(problem), slices, costs)))
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

    def _times(self, extents: Extents, slices: Any, costs: _Costs) -> Times:
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
        return Times(seconds, sm_ctas, resident, ctas, k_tiles, l2, dram)


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
