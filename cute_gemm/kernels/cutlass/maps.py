"""CUTLASS 2.x thread maps: which elements of a tile each thread of a CTA moves, and when.

The classes of ``cutlass/transform/pitch_linear_thread_map.h`` and
``cutlass/epilogue/threadblock/output_tile_thread_map.h``, evaluated in Python. They speak of
pitch-linear coordinates (contiguous, strided), whatever the matrix is called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Threads of a warp.
WARP = 32


@dataclass(frozen=True, eq=False)
class LoadMap:
    """One of CUTLASS's PitchLinear...ThreadMaps."""

    #: Elements of a thread's vector: consecutive along the contiguous mode.
    vector: int
    #: Vectors per thread along (contiguous, strided), and the steps between them in elements.
    iterations: tuple[int, int]
    delta: tuple[int, int]
    #: int array [threads, 2]: each thread's first element, (contiguous, strided).
    first: np.ndarray
    #: Consecutive vectors along the strided mode that belong to one step (4: 4x4 thread tiles).
    rows: int = 1

    def requests(self, access: int) -> np.ndarray:
        """Return each lane's first element in each request of instructions of ``access`` elements.

        int array [requests, 32, 2]: (contiguous, strided), relative to the tile's corner; the warps
        of a step in a row, the steps as CUTLASS takes them.
        """
        steps = [
            (c * self.delta[0] + v * access, s * self.delta[1] + row)
            for s in range(self.iterations[1])
            for c in range(self.iterations[0])
            for row in range(self.rows)
            for v in range(self.vector // access)
        ]
        return _each_step(self.first, steps)


def _each_step(first: np.ndarray, steps: list[tuple[int, int]]) -> np.ndarray:
    """[threads, 2] and the steps from there -> [requests, 32, 2], the warps of a step in a row."""
    lanes = first.reshape(1, -1, WARP, 2) + np.array(steps).reshape(-1, 1, 1, 2)
    return lanes.reshape(-1, WARP, 2)


def _divides(what: str, divisor: int, number: int) -> None:
    if divisor < 1 or number < 1 or number % divisor:
        raise ValueError(f"{what}: {number} is not a multiple of {divisor}")


def _warp_accesses(
    contiguous: int, strided: int, arrangement: tuple[int, int], vector: int
) -> tuple[int, int]:
    """Accesses of a warp that cover the tile, along both modes."""
    _divides("contiguous tile extent", arrangement[0] * vector, contiguous)
    _divides("strided tile extent", arrangement[1], strided)
    return contiguous // vector // arrangement[0], strided // arrangement[1]


def _by_warp(
    threads: int,
    arrangement: tuple[int, int],
    footprint: tuple[int, int],
    warps_contiguous: int,
    vector: int,
) -> np.ndarray:
    """First elements of threads whose warps are ``arrangement`` wide; int [threads, 2]."""
    warp, lane = np.divmod(np.arange(threads), WARP)
    contiguous = footprint[0] * (warp % warps_contiguous) + lane % arrangement[0]
    strided = footprint[1] * (warp // warps_contiguous) + lane // arrangement[0]
    return np.stack([contiguous * vector, strided], axis=-1)


def raked(
    contiguous: int, strided: int, threads: int, arrangement: tuple[int, int], vector: int
) -> LoadMap:
    """``PitchLinearWarpRakedThreadMap``: the tensor core kernels' map.

    Extents of the tile in elements; ``arrangement`` is the lanes of a warp along the contiguous and
    the strided mode. Like all of them it raises ``ValueError`` when the tile does not divide so.
    """
    warps, accesses = threads // WARP, _warp_accesses(contiguous, strided, arrangement, vector)
    warps_strided = min(warps, accesses[1])
    warps_contiguous = warps // warps_strided if warps > accesses[1] else 1
    _divides("warp accesses along the contiguous mode", warps_contiguous, accesses[0])
    _divides("warp accesses along the strided mode", warps_strided, accesses[1])
    _divides("warps", warps_contiguous * warps_strided, warps)
    iterations = (accesses[0] // warps_contiguous, accesses[1] // warps_strided)
    footprint = (arrangement[0] * iterations[0], arrangement[1] * iterations[1])
    first = _by_warp(threads, arrangement, footprint, warps_contiguous, vector)
    return LoadMap(vector, iterations, (arrangement[0] * vector, arrangement[1]), first)


def striped(
    contiguous: int, strided: int, threads: int, arrangement: tuple[int, int], vector: int
) -> LoadMap:
    """``PitchLinearWarpStripedThreadMap``: float64 operands whose m or n is contiguous."""
    warps, accesses = threads // WARP, _warp_accesses(contiguous, strided, arrangement, vector)
    if accesses[1] < warps:
        # CUTLASS's formula for this case leaves warps without work of their own.
        raise ValueError(f"strided tile extent: {strided} is too small for {warps} warps")
    _divides("warp accesses along the strided mode", warps, accesses[1])
    first = _by_warp(threads, arrangement, (0, arrangement[1]), 1, vector)
    iterations = (accesses[0], accesses[1] // warps)
    return LoadMap(vector, iterations, (arrangement[0] * vector, arrangement[1] * warps), first)


def stripmined(contiguous: int, strided: int, threads: int, tile: int = 1) -> LoadMap:
    """``PitchLinearStripminedThreadMap`` (SIMT): single elements, ``tile=1``.

    With ``tile=4`` its 2-D form (dp4a): tiles of 4x4 elements, four vectors of four.
    """
    _divides("contiguous tile extent", tile, contiguous)
    _divides("strided tile extent", tile, strided)
    shape = (contiguous // tile, strided // tile)
    if threads < shape[0]:
        raise ValueError(f"contiguous tile extent: {contiguous} is too large for {threads} threads")
    _divides("threads", shape[0], threads)
    _divides("strided tile extent", threads // shape[0] * tile, strided)
    thread = np.arange(threads)
    first = np.stack([thread % shape[0], thread // shape[0]], axis=-1) * tile
    iterations = (1, shape[1] // (threads // shape[0]))
    delta = (contiguous if tile > 1 else 1, threads * tile // shape[0])
    return LoadMap(tile, iterations, delta, first, rows=tile)


@dataclass(frozen=True)
class StoreMap:
    """``OutputTileOptimalThreadMap``: how the epilogue writes a row-major tile.

    ``shape`` and ``count`` are (column, row, group, cluster, tile) as in CUTLASS's
    ``OutputTileShape``.
    """

    shape: tuple[int, int, int, int, int]
    count: tuple[int, int, int, int, int]
    threads: int
    vector: int  # elements of an access
    bits: int  # of an element

    def _partition(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return iterations, deltas and lanes.

        The first two by (column, row, group, cluster); lanes: (width, rows) of a warp's access and
        the partitions of warps by (group, cluster).
        """
        column, row, group, cluster, _ = self.shape
        _, rows, groups, _, _ = self.count
        warps = self.threads // WARP
        if cluster > warps:
            it_cluster, part_cluster, left = cluster // warps, warps, 1
            d_cluster = row * rows * group * groups * cluster // it_cluster
        else:
            it_cluster, part_cluster, left, d_cluster = 1, warps // cluster, warps // cluster, 1
        if group > left:
            it_group, part_group, for_rows = group // left, 1, 1
            d_group = row * rows * group // it_group
        else:
            it_group, part_group, for_rows, d_group = 1, left // group, left // group, 1
        if row > for_rows:
            shape_row, width = row // for_rows, column // self.vector
            target = 256 // (self.vector * self.bits // 8)
            target_rows = WARP // max(target, 1)
            if target_rows > shape_row:
                access_width, access_rows = WARP // shape_row, shape_row
            else:
                access_width = min(width, WARP, target)
                access_rows = min(row, WARP // access_width)
            it = (width // access_width, shape_row // access_rows)
            delta = (access_width * self.vector, access_rows)
        else:
            access_width, access_rows = WARP, 1
            it, delta = (column // self.vector // WARP, 1), (WARP * self.vector, 1)
        return (
            (*it, it_group, it_cluster),
            (*delta, d_group, d_cluster),
            (access_width, access_rows, part_group, part_cluster),
        )

    @property
    def iterations(self) -> tuple[int, ...]:
        """Accesses per thread and visit by (column, row, group, cluster)."""
        return self._partition()[0]

    @property
    def delta(self) -> tuple[int, ...]:
        """Steps between them, in elements."""
        return self._partition()[1]

    def check(self) -> None:
        """Raise ``ValueError`` when the tile cannot be divided so."""
        (column, row, group, cluster), (step, *_), (width, rows, _, _) = self._partition()
        if min(column, row, group, cluster) < 1 or width < 1 or rows < 1:
            raise ValueError(f"epilogue: a tile {self.shape[0]} wide is too small for its warps")
        _divides("epilogue tile width", step, self.shape[0])

    def requests(self) -> np.ndarray:
        """Return (row, column) of each lane's first element, int [requests, 32, 2]."""
        iterations, delta, (width, rows, part_group, part_cluster) = self._partition()
        _, row, group, _, _ = self.shape
        _, count_row, count_group, _, count_tile = self.count
        warp, lane = np.divmod(np.arange(self.threads), WARP)
        in_cluster = warp % part_cluster
        in_group = in_cluster % part_group
        first_row = (
            warp // part_cluster * (row * count_row * group * count_group)
            + in_cluster // part_group * (row * count_row)
            + in_group * (iterations[1] * rows)
            + lane // width
        )
        first = np.stack([first_row, lane % width * self.vector], axis=-1)
        steps = []
        start = 0
        for tile in range(1, count_tile + 1):
            steps += [
                (start + r * delta[1] + g * delta[2] + k * delta[3], c * delta[0])
                for k in range(iterations[3])
                for g in range(iterations[2])
                for r in range(iterations[1])
                for c in range(iterations[0])
            ]
            # PredicatedTileIterator::operator++
            start += row
            if tile % count_row == 0:
                start += (group - 1) * row * count_row
            if tile % (count_row * count_group) == 0:
                start += count_group * group * count_row * row
        return _each_step(first, steps)
