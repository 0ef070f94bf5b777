"""The predicted time of a config on a problem.

`Predictions` converts footprints (`cost_model.footprint`) and extents to seconds, from the CTAs of
the busiest multiprocessor, the number resident at a time, the longer of their work and their
latency, and the time that L2 and DRAM take for the bytes moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm.cost_model.correction import FEATURES
from cute_gemm.gpus.occupancy import clusters_at_a_time

if TYPE_CHECKING:
    from cute_gemm.cost_model.footprint import Footprint
    from cute_gemm.gpus.gpu import Gpu
    from cute_gemm.problem.problem import GemmProblem


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted time and its terms."""

    #: Predicted time of the launch, with the auxiliary kernels before and after it.
    seconds: float
    #: Seconds of each unit if it were the only one: ``"tensor cores"`` or ``"CUDA cores"``,
    #: ``"shared memory"``, ``"L1"``, ``"TMA"``, ``"instruction issue"``, ``"L2"``, ``"DRAM"``;
    #: ``"waiting"`` for latency, ``"launch overhead"``, and the auxiliary kernels by their names.
    terms: dict[str, float]
    #: CTAs of the launch.
    ctas: int
    #: CTAs of a multiprocessor at a time.
    resident: int
    #: Times that the busiest multiprocessor is filled.
    rounds: int
    #: Part of the places that the last round fills, 0 to 1.
    full: float
    #: The factor of a `Correction` in ``seconds``.
    correction: float = 1.0

    @property
    def binding(self) -> str:
        """Name of the largest term."""
        return self.largest(1)[0][0]

    def with_auxiliary(self, auxiliary: dict[str, float]) -> Prediction:
        """Return this prediction with the seconds of auxiliary kernels, by name."""
        seconds = self.seconds + sum(auxiliary.values())
        return replace(self, seconds=seconds, terms={**self.terms, **auxiliary})

    def corrected(self, factor: float) -> Prediction:
        """Return this prediction with its seconds times a factor; terms do not change."""
        return replace(self, seconds=self.seconds * factor, correction=factor)

    def bounded(self, least: float) -> Prediction:
        """Return this prediction with at least ``least`` seconds (`roofline.least_seconds`).

        Calibrations and corrections are fitted to times of some problems on some GPUs. For others
        they may predict times that the GPU cannot reach.
        """
        return replace(self, seconds=max(self.seconds, least))

    def largest(self, count: int) -> list[tuple[str, float]]:
        """Return the ``count`` largest terms with their seconds, largest first."""
        return sorted(self.terms.items(), key=lambda term: -term[1])[:count]


class _Costs(NamedTuple):
    """Properties of footprints and a GPU that times depend on: arrays with footprints as last axis.

    Clocks are in seconds, and combinations of two fields without the extents have a separate field,
    so that a problem needs few operations.
    """

    #: Along M and N: extents of a cluster, extents of a tile, CTAs of a cluster, and seconds of L2
    #: for a k-tile of A and of B with all rows inside.
    clusters: np.ndarray
    tiles: np.ndarray
    along: np.ndarray
    l2: np.ndarray
    tile_k: np.ndarray
    #: CTAs of a cluster, multiprocessors that clusters of this size can occupy, CTAs of one
    #: multiprocessor at a time, and CTAs of all of them.
    cluster_ctas: np.ndarray
    sms: np.ndarray
    resident: np.ndarray
    places: np.ndarray
    #: Products of a batch that a CTA computes.
    products: np.ndarray
    #: Seconds of a k-tile if others fill its gaps, and if a multiprocessor has one CTA; the
    #: difference.
    busy: np.ndarray
    lone: np.ndarray
    slower: np.ndarray
    #: Seconds of a k-tile on three units that are part of `busy`.
    shared: np.ndarray
    l1: np.ndarray
    issue: np.ndarray
    #: Seconds of a k-tile on the TMA unit, and more for each row of its boxes outside A and B.
    tma: np.ndarray
    outside: np.ndarray
    #: Seconds of a k-tile that other CTAs do not shorten, and their cube.
    latency: np.ndarray
    latency_cubed: np.ndarray
    #: Seconds of starts and ends of CTAs, and the part of them that is exposed.
    start: np.ndarray
    end: np.ndarray
    exposed: np.ndarray
    #: Seconds of L2 for the end of a CTA with all rows inside, of DRAM for a byte, and of the
    #: launch.
    l2_end: np.ndarray
    dram: np.ndarray
    launch: np.ndarray

    @classmethod
    def of(cls, rows: np.ndarray) -> _Costs:
        """Return the fields of an array with a column for each footprint (`_column`)."""
        return cls(*rows[:8].reshape(4, 2, -1), *rows[8:])


#: Names of the numbers of a column (`_column`): four fields have two.
_COLUMN = (
    "extent of a cluster M", "extent of a cluster N", "tile M", "tile N", "cluster M", "cluster N",
    "L2 M", "L2 N", *_Costs._fields[4:],
)  # fmt: skip


def _column(footprint: Footprint, gpu: Gpu) -> tuple[float, ...]:
    """Return the `_Costs` of one footprint."""
    (m, n, k), (along_m, along_n), pace = footprint.tile, footprint.cluster, footprint.pace
    ctas, clock = along_m * along_n, gpu.clock_ghz * 1e9
    sms = clusters_at_a_time(gpu.sms, ctas) * ctas
    l2 = pace.l2 * gpu.sms * clock
    busy, lone = footprint.busy / clock, footprint.busy * pace.lone / clock
    cubed = footprint.latency_cubed / clock**3
    units = dict(footprint.units)
    shared = (units[name] / clock for name in ("shared memory", "L1", "instruction issue"))
    return (
        m * along_m, n * along_n, m, n, along_m, along_n,
        footprint.bytes_m / l2, footprint.bytes_n / l2, k,
        ctas, sms, footprint.resident, sms * footprint.resident, footprint.products,
        busy, lone, pace.lone, *shared, footprint.tma / clock, footprint.outside / clock,
        float(np.cbrt(cubed)), cubed, footprint.start / clock, footprint.end / clock,
        pace.exposed,
        footprint.end_bytes / l2, 1 / (pace.dram * gpu.bandwidth_gbs * 1e9),
        footprint.launch * 1e-6,
    )  # fmt: skip


class Extents(NamedTuple):
    """Inputs of a predicted time besides the footprint; arrays for several problems."""

    m: Any
    n: Any
    k: Any
    #: Products of a batch, or groups.
    l: Any
    #: Bytes of all matrices, with C twice if it is read too.
    moved: Any
    #: Mode along which groups lie.
    groups: str = ""

    @classmethod
    def of(cls, problem: GemmProblem, reads_c: bool = False) -> Extents:
        """Return the extents of a problem; ``reads_c``: whether the launch reads C too."""
        moved = sum(matrix.nbytes for matrix in problem.matrices) + problem.C.nbytes * reads_c
        return cls(problem.m, problem.n, problem.k, problem.l, moved, problem.groups.mode)


class Times(NamedTuple):
    """Results of `Predictions` for a problem, for each footprint.

    Arrays with footprints as last axis; an axis of numbers of slices may come before it.
    """

    #: Predicted time of the launch.
    seconds: np.ndarray
    #: CTAs of the busiest multiprocessor, CTAs of the launch, and k-tiles of a CTA.
    sm_ctas: np.ndarray
    ctas: np.ndarray
    k_tiles: np.ndarray
    #: Seconds of L2 and of DRAM if each were the only unit.
    l2: np.ndarray
    dram: np.ndarray
    #: Parts of the extents of clusters inside C.
    inside_m: np.ndarray
    inside_n: np.ndarray

    def at(self, *places: np.ndarray) -> Times:
        """Return the times of some footprints, each with one number of slices."""
        return Times(*(x[places[-x.ndim :]] for x in self))


#: Indices of the features.
_AT = {name: place for place, name in enumerate(FEATURES)}
#: Features that are numbers of a column: names of the fields, if different; indices in `FEATURES`
#: and in a column.
_FIELDS = {
    "tile K": "tile_k", "resident CTAs": "resident", "lone": "slower", "TMA": "tma",
    "shared memory": "shared", "L1": "l1",
}  # fmt: skip
_OF_COSTS = [at for name, at in _AT.items() if _FIELDS.get(name, name) in _COLUMN]
_COSTS = [_COLUMN.index(_FIELDS.get(FEATURES[at], FEATURES[at])) for at in _OF_COSTS]
_PLACES = _COLUMN.index("places")


class Predictions:
    """Predictions for many footprints on one GPU, computed together."""

    __slots__ = ("_costs", "_gpu", "_rows", "footprints")

    def __init__(
        self, footprints: Sequence[Footprint], gpu: Gpu, rows: np.ndarray | None = None
    ) -> None:
        self.footprints = tuple(footprints)
        self._gpu = gpu
        if rows is None:
            columns = [_column(footprint, gpu) for footprint in footprints]
            rows = np.array(columns, float).reshape(-1, len(_COLUMN)).T.copy()
        self._rows = rows
        self._costs = _Costs.of(rows)

    def __len__(self) -> int:
        return len(self.footprints)

    def of(self, places: Sequence[int] | np.ndarray) -> Predictions:
        """Return the predictions of the footprints at these indices, which may repeat."""
        footprints = [self.footprints[place] for place in places]
        return Predictions(footprints, self._gpu, self._rows[:, places])

    def seconds(self, extents: Extents, slices: Any = 1) -> np.ndarray:
        """Return the predicted seconds of each footprint, with K cut into ``slices``.

        The shape is that of the footprints, broadcast with ``slices`` and with the extents.
        """
        return self.times(extents, slices).seconds

    def features(
        self, extents: Extents, slices: Any, times: Times, places: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the inputs of a `Correction`: a row of `FEATURES` for each footprint.

        ``slices``: one number, or one for each footprint; ``times``: the times with these slices;
        ``places``: indices of the footprints, if not all.
        """
        costs = self._rows if places is None else self._rows.take(places, axis=1)
        waves = times.ctas / costs[_PLACES]
        rounds = np.ceil(waves)
        rows = np.empty((len(FEATURES), costs.shape[1]))
        rows[_OF_COSTS] = costs[_COSTS]
        for name, values in (
            ("slices", slices), ("k tiles", times.k_tiles),
            ("rounds", waves), ("last round", waves - rounds),
            ("inside M", times.inside_m), ("inside N", times.inside_n),
            ("seconds", times.seconds), ("L2", times.l2), ("DRAM", times.dram),
        ):  # fmt: skip
            rows[_AT[name]] = values
        rows[_AT["busy"] :] *= times.k_tiles * rounds  # from here on seconds of a k-tile
        rows[_AT["L2"] :] /= times.seconds  # from here on parts of the seconds
        return rows.T

    def predict(
        self, problem: GemmProblem, index: int, slices: int = 1, reads_c: bool = False
    ) -> Prediction:
        """Return the prediction of the footprint ``index`` with its terms.

        ``reads_c``: whether C is read too; the footprint must include these reads.
        """
        own, footprint = self.of([index]), self.footprints[index]
        times = own.times(Extents.of(problem, reads_c), slices)
        seconds, sm_ctas, ctas, k_tiles, l2, dram = (float(x[0]) for x in times[:6])
        resident = min(footprint.resident, max(sm_ctas, 1.0))
        rounds = -(-sm_ctas // resident)
        clock = self._gpu.clock_ghz * 1e9
        terms = {unit: sm_ctas * k_tiles * clocks / clock for unit, clocks in footprint.units}
        if ctas <= own._costs.sms[0] / 2:
            terms["TMA"] /= 2
        terms["waiting"] = rounds * k_tiles * float(own._costs.latency[0])
        terms |= {"L2": l2, "DRAM": dram, "launch overhead": footprint.launch * 1e-6}
        full = (sm_ctas - (rounds - 1) * resident) / resident
        return Prediction(seconds, terms, int(ctas), footprint.resident, int(rounds), full)

    def times(self, extents: Extents, slices: Any = 1) -> Times:
        """Return the predicted seconds of each footprint and intermediate results.

        TMA takes half the clocks in a round in which at most half of the multiprocessors have a
        CTA, as if two of them shared a path to L2: inferred from times.
        The first call with a problem waits for this, so it has few operations on arrays.
        """
        costs = self._costs
        mn = np.array((extents.m, extents.n), float).reshape(2, -1)
        clusters = np.ceil(mn / costs.clusters)
        k_tiles = np.ceil(extents.k / (costs.tile_k * slices))
        tma = costs.tma
        if extents.groups:
            # The sizes of groups, which are on the device, are assumed to be uniformly distributed
            # from 0 to twice their mean. So each needs half a tile more on average, and at least
            # one; the parts inside are not known.
            if extents.groups == "K":
                k_tiles = np.maximum(extents.k / extents.l / costs.tile_k + 0.5, 1.0)
            else:
                mode = "MN".index(extents.groups)
                mean = mn[mode] / extents.l
                clusters[mode] = np.maximum(mean / costs.clusters[mode] + 0.5, 1.0)
            inside, inside_k = np.ones_like(clusters), 1.0
        else:
            # Parts of a cluster's tiles and of a k-tile inside A and B, and the average number of
            # rows outside in a tile with rows inside.
            inside = mn / np.maximum(clusters * costs.clusters, 1)
            inside_k = extents.k / np.maximum(k_tiles * slices * costs.tile_k, 1)
            outside = costs.tiles - mn / np.maximum(np.ceil(mn / costs.tiles), 1)
            tma = tma + costs.outside * (outside[0] + outside[1])
        ctas = clusters[0] * clusters[1] * costs.cluster_ctas * slices
        if not (isinstance(extents.l, int) and extents.l == 1):
            ctas = ctas * np.ceil(extents.l / costs.products)
        sm_ctas = np.ceil(ctas / costs.sms)

        def round_of(ctas: Any, busy: Any) -> tuple[Any, Any]:
            """Return the seconds of k-tiles, and of starts and ends, of CTAs that run together."""
            main = k_tiles * np.cbrt(_cube(ctas * busy) + costs.latency_cubed)
            return main, costs.start + ctas * costs.end

        before = np.maximum(np.ceil(ctas / costs.places) - 1, 0)
        last_ctas = ctas - before * costs.places
        main, ends = round_of(costs.resident, np.maximum(costs.busy, tma))
        busy = np.where(sm_ctas > 1, costs.busy, costs.lone)
        tma = np.where(last_ctas <= costs.sms / 2, tma / 2, tma)
        last, last_ends = round_of(np.ceil(last_ctas / costs.sms), np.maximum(busy, tma))
        on_sm = before * (main + costs.exposed * ends) + last + last_ends
        l2_tile = costs.l2 * inside
        l2_tile = (l2_tile[0] + l2_tile[1]) * inside_k
        l2 = (l2_tile * k_tiles + costs.l2_end * inside[0] * inside[1]) * ctas
        dram = extents.moved * costs.dram
        seconds = costs.launch + last_ends
        if self.footprints:
            constants = self.footprints[0].constants
            idle = (1 - last_ctas / costs.places) * last * constants.idle
            seconds = seconds + np.cbrt(_cube(on_sm - last_ends) + _cube(l2) + _cube(dram + idle))
            cold = 1.0 - np.exp(extents.moved * (-1e-6 / constants.cold_mb))
            seconds = seconds + constants.cold_us * 1e-6 * cold
        return Times(seconds, sm_ctas, ctas, k_tiles, l2, dram, *inside)


def _cube(x: Any) -> Any:
    return x * x * x  # takes a tenth of the time of x**3
