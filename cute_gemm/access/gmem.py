"""Cost of a kernel's global-memory instructions, as the hardware counts it.

The cost of a request (one warp's instruction) depends only on the addresses of its lanes relative
to each other and on the place of the first within a 128-byte line. The requests of all tiles of a
matrix therefore fall into few classes: *patterns* of lanes within a tile, and the residue of the
tile's base address. The number of tiles per residue has a closed form, so the time of an analysis
does not depend on the size of the matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from math import gcd
from operator import mul
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import numpy as np

from cute_gemm.access.accesses import TileOrigin

if TYPE_CHECKING:
    from cute_gemm.access.accesses import GlobalAccess
    from cute_gemm.problem.matrix import Matrix

Counts = TypeVar("Counts", bound="Sums")

#: Bytes of a sector, the unit of transfers between L1, L2 and DRAM.
SECTOR = 32
#: Bytes of a cache line: four sectors.
LINE = 128
#: Lanes of a warp.
LANES = 32
#: Number of residues up to which adding them one by one is faster.
_FEW = 8


def base_residue(matrix: Matrix) -> int:
    """Return the address of element (0, 0) of a batch's first matrix modulo a line.

    The alignment is the largest power of two that divides the address. From 128 bytes (a line) the
    residue is 0. Below, the address is an odd multiple of the alignment, and the smallest multiple
    stands for all. With an alignment of 16 bytes this is exact for sectors.
    """
    return max(matrix.alignment, matrix.first_alignment) % LINE


def residue_histogram(count: int, step: int, modulus: int = LINE) -> np.ndarray:
    """Count ``i * step``, ``0 <= i < count``, by residue; int64 [modulus]."""
    period = modulus // gcd(step, modulus)
    index = np.arange(period)
    histogram = np.zeros(modulus, np.int64)
    histogram[index * (step % modulus) % modulus] = count // period + (index < count % period)
    return histogram


def one_residue(address: int) -> np.ndarray:
    """Return the histogram of a single address."""
    return np.bincount([address % LINE], minlength=LINE)


def convolve(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cyclic convolution along the last axis of ``a`` [..., modulus]: sums of residues.

    Beyond int64, for a batch of huge launches, the result has Python integers.
    """
    if a.dtype != object and float(a.sum()) * float(b.sum()) > 2**62:
        a = a.astype(object)
    steps = np.flatnonzero(b)
    if steps.size <= _FEW:
        return sum((np.roll(a, step, axis=-1) * b[step] for step in steps), np.zeros_like(a))
    residue = np.arange(b.size)
    return a @ b[(residue[None, :] - residue[:, None]) % b.size]


def in_batch(tiles: np.ndarray, matrix: Matrix) -> np.ndarray:
    """Return the base residues of the tiles of all matrices, from those of the first matrix."""
    for count, step in matrix.levels:
        tiles = convolve(tiles, residue_histogram(count, step * matrix.element.bytes))
    return tiles


def covered(starts: np.ndarray, lengths: np.ndarray, granule: int) -> np.ndarray:
    """Return the number of distinct blocks of ``granule`` bytes that each request touches.

    ``starts`` are byte addresses, ascending along the last axis and not negative. ``lengths`` are
    the bytes of each lane, at least 1.
    """
    first = starts // granule
    last = (starts + lengths - 1) // granule
    seen = np.maximum.accumulate(last, axis=-1)
    # A lane adds the blocks that no previous lane has touched.
    fresh_from = np.maximum(first[..., 1:], seen[..., :-1] + 1)
    fresh = np.maximum(last[..., 1:] - fresh_from + 1, 0)
    return fresh.sum(axis=-1) + (last[..., 0] - first[..., 0] + 1)


def runs(starts: np.ndarray, lengths: np.ndarray) -> list[tuple[int, int]]:
    """Return the contiguous runs (start, bytes) of one request's lanes, ascending."""
    merged: list[tuple[int, int]] = []
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        if merged and start <= sum(merged[-1]):
            begin = merged[-1][0]
            merged[-1] = (begin, max(sum(merged[-1]), start + length) - begin)
        else:
            merged.append((start, length))
    return merged


@dataclass(frozen=True, slots=True)
class Sums:
    """A dataclass of numbers that are added field by field."""

    def __add__(self: Counts, other: Counts) -> Counts:
        return type(self)(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self: Counts, factor: int) -> Counts:
        """Return these sums times ``factor``."""
        return type(self)(*(getattr(self, f.name) * factor for f in fields(self)))


@dataclass(frozen=True, slots=True)
class GlobalCounts(Sums):
    """Sums over the requests of some visits of some tiles.

    ``tiles`` are visits of tiles, ``lanes`` active lanes. If all lanes of a request are predicated
    off, it sends nothing to L1, and the hardware counts neither a request nor a sector: it counts
    in ``off``, not in ``requests``. ``sectors`` and ``lines`` are the distinct 32-byte sectors and
    128-byte lines of each request, summed; the sectors of 16-byte ``cp.async`` follow the hardware
    counters (see ``analyze``). ``l2_sectors`` are the sectors requested from L2, which differ for
    such copies only. ``ideal_sectors``: the fewest that can hold the used bytes of each request;
    ``bytes``: distinct used bytes of each; both are summed.
    """

    tiles: int = 0
    requests: int = 0
    off: int = 0
    lanes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    lines: int = 0
    bytes: int = 0
    l2_sectors: int = 0

    @property
    def efficiency(self) -> float:
        """Bytes used over bytes of the sectors requested from L2; 1.0 without sectors."""
        return self.bytes / (SECTOR * self.l2_sectors) if self.l2_sectors else 1.0

    @property
    def coalesced(self) -> bool:
        """Whether the sectors are the fewest that can hold the bytes used.

        No request has fewer sectors than its ideal, so equal sums mean that each request is ideal.
        """
        return self.sectors == self.l2_sectors == self.ideal_sectors


@dataclass(frozen=True, slots=True)
class WorstRequest:
    """The request with the most sectors above its ideal, and the arrangement of its bytes.

    The first four fields are as in ``GlobalCounts``, for this request; sectors are those requested
    from L2. ``runs``: number of contiguous runs of bytes; ``run_bytes``: length of the shortest;
    ``pitch``: bytes from the start of a run to the next start, 0 if it varies;
    ``fewest_sectors``: sectors if every run began on a sector boundary.
    """

    sectors: int
    ideal_sectors: int
    lines: int
    bytes: int
    runs: int
    run_bytes: int
    pitch: int
    fewest_sectors: int

    @property
    def cause(self) -> str:
        """``""`` (ideal), ``"strided"`` (runs too short) or ``"offset"`` (runs off a sector)."""
        if self.sectors == self.ideal_sectors:
            return ""
        return "strided" if self.fewest_sectors > self.ideal_sectors else "offset"


@dataclass(frozen=True, slots=True)
class TileCosts:
    """Cost of an access to tiles of a matrix in global memory.

    ``tile``: one visit of the first tile, an interior one unless the matrix is smaller than a tile.
    ``interior``, ``edge``: one visit of each full and of each partial tile. ``launch``: every visit
    of every tile.
    """

    tile: GlobalCounts
    interior: GlobalCounts
    edge: GlobalCounts
    launch: GlobalCounts

    @property
    def judged(self) -> GlobalCounts:
        """Counts that decide the verdict: interior tiles, or edge tiles if no tile is full."""
        return self.interior if self.interior.tiles else self.edge

    @property
    def coalesced(self) -> bool:
        """Whether these tiles touch the fewest sectors that can hold their bytes."""
        return self.judged.coalesced


@dataclass(frozen=True, slots=True)
class GlobalAnalysis(TileCosts):
    """Cost of one ``GlobalAccess``.

    ``worst``: the worst request of the interior tiles (of all tiles if none is full), or None.
    ``aligned``: whether every lane's address is a multiple of its vector (for a bulk copy, of 16
    bytes). If not, the hardware faults.
    """

    worst: WorstRequest | None
    aligned: bool

    legal: ClassVar[bool] = True

    @property
    def coalesced(self) -> bool:
        """Whether every request that the verdict is about touches the fewest possible sectors."""
        return self.aligned and self.judged.coalesced


class _Patterns(NamedTuple):
    """The distinct requests of a tile: lanes sorted by address, relative to the first lane."""

    starts: np.ndarray  # int64 [patterns, 32]
    lengths: np.ndarray  # int64 [patterns, 32], at least 1
    targets: np.ndarray | None  # int64 [patterns, 32]: sectors of shared memory, from 0
    lanes: np.ndarray  # int64 [patterns], active lanes
    histogram: np.ndarray  # int64 [patterns, LINE]: requests by residue of the first lane
    off: int  # requests without active lanes


class TileClass(NamedTuple):
    """The tiles of one extent: ``valid`` elements in each mode, counted by base residue."""

    valid: tuple[int, ...]
    tiles: np.ndarray  # int64 [LINE]
    full: bool
    place: TileOrigin | None = None  # set if words are moved


def distinct_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of int64 [n, m], and the index of each row among them.

    Many times faster than ``np.unique(axis=0)``, which compares by element.
    """
    rows = np.ascontiguousarray(rows, np.int64)
    if (rows == rows[:1]).all():  # common for the many elements of C
        return rows[:1], np.zeros(len(rows), np.int64)
    number: dict[bytes, int] = {}
    which = np.array([number.setdefault(row.tobytes(), len(number)) for row in rows], np.int64)
    distinct = np.frombuffer(b"".join(number), np.int64).reshape(len(number), rows.shape[1])
    return distinct, which


def _patterns(access: GlobalAccess, valid: tuple[int, ...], place: TileOrigin | None) -> _Patterns:
    """Sort the requests of a tile with ``valid`` elements in each mode into patterns."""
    starts, lengths = access.lanes(valid, place)
    active = lengths > 0
    some = active.any(axis=-1)
    off = int(np.count_nonzero(~some))
    starts, lengths, active = starts[some], lengths[some], active[some]
    first = np.where(active, starts, np.iinfo(np.int64).max).min(axis=-1, initial=2**63 - 1)
    # Lanes without work repeat the first byte, which does not change counts.
    starts = np.where(active, starts - first[:, None], 0)
    lengths = np.where(active, lengths, 1)
    columns = [starts, lengths]
    bypass = access.targets is not None and bypasses_l1(access.instruction, access.bits)
    if bypass:
        targets = np.asarray(access.targets, np.int64).reshape(-1, LANES)[some] // SECTOR
        # Lanes without work copy the first active lane, whose start they have too.
        leader = np.where(active, starts, np.iinfo(np.int64).max).argmin(axis=-1)[:, None]
        targets = np.where(active, targets, np.take_along_axis(targets, leader, axis=-1))
        columns.append(targets - targets.min(axis=-1, keepdims=True, initial=2**62))
    columns.append(active.sum(axis=-1, keepdims=True))
    # Few requests are distinct before their lanes are sorted, fewer afterwards.
    standing, kind = distinct_rows(np.concatenate(columns, axis=-1))
    *lanewise, number = np.split(standing, range(LANES, standing.shape[1], LANES), axis=-1)
    order = np.argsort(lanewise[0], axis=-1, kind="stable")
    by_address = [np.take_along_axis(column, order, axis=-1) for column in lanewise]
    columns = [*by_address[:2], number, *by_address[2:]]
    distinct, standing_at = _ordered(np.concatenate(columns, axis=-1))
    which = standing_at[kind]
    histogram = np.zeros((len(distinct), LINE), np.int64)
    np.add.at(histogram, (which, first % LINE), 1)
    return _Patterns(
        distinct[:, :LANES],
        distinct[:, LANES : 2 * LANES],
        distinct[:, 2 * LANES + 1 :] if bypass else None,
        distinct[:, 2 * LANES],
        histogram,
        off,
    )


def _ordered(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of int64 [n, m] in order, and each row's index: a fast unique."""
    order = np.lexsort(rows.T[::-1])
    ascending = rows[order]
    new = np.ones(len(rows), bool)
    new[1:] = (ascending[1:] != ascending[:-1]).any(axis=-1)
    place = np.empty(len(rows), np.int64)
    place[order] = np.cumsum(new) - 1
    return ascending[new], place


def bypasses_l1(instruction: str, bits: int) -> bool:
    """Return whether an instruction is ``cp.async.cg``: 16 bytes from L2 to shared memory."""
    return instruction == "cp.async" and bits == 128


def _distinct(keys: np.ndarray) -> np.ndarray:
    """Return the number of distinct values along the last axis."""
    ordered = np.sort(keys, axis=-1)
    return 1 + (ordered[..., 1:] != ordered[..., :-1]).sum(axis=-1)


def classes(access: GlobalAccess, base: int | None = None) -> list[TileClass]:
    """Sort the tiles of the region, in all matrices of a batch, by extent and base residue.

    ``base`` is the residue of element (0, 0) of the first matrix, by default ``base_residue``.
    """
    base = base_residue(access.matrix) if base is None else base
    begin = base + corner_bytes(access)
    if access.products is not None:
        modes = tuple((*mode, mode[1]) for mode in access.modes)
        tiles = _tiles_by_extent(modes, access.matrix.element.bytes)
        return [tiled._replace(tiles=np.roll(tiled.tiles, begin % LINE)) for tiled in tiles]
    tile_sets = tile_classes(access.matrix, access.region, access.tile, begin)
    return _word_classes(access, base, tile_sets) if access.words else tile_sets


def _word_classes(access: GlobalAccess, base: int, tile_sets: list[TileClass]) -> list[TileClass]:
    """Split classes by the start of words, with the first tile's class first.

    The first tile and the last two tiles in each mode have separate classes: only they have
    elements in the words at the matrix's ends.
    """
    at_ends, rest = [], {tiled.valid: tiled.tiles for tiled in tile_sets}
    strides = [stride * access.matrix.element.bytes for stride in access.matrix.stride]
    modes = [
        sorted({index * tile for index in (0, number - 2, number - 1) if index >= 0})
        for extent, tile in zip(access.region, access.tile, strict=True)
        for number in [-(-extent // tile)]
    ]
    for first in product(*modes):
        valid = tuple(
            min(tile, extent - begin)
            for tile, extent, begin in zip(access.tile, access.region, first, strict=True)
        )
        if valid in rest:
            corner = corner_bytes(access) + sum(x * y for x, y in zip(first, strides, strict=True))
            tiles = in_batch(one_residue(base + corner), access.matrix)
            rest[valid] = rest[valid] - tiles
            at_ends.append((corner, valid, tiles, valid == access.tile))
    others = [(None, tiled.valid, rest[tiled.valid], tiled.full) for tiled in tile_sets]
    residue = np.arange(LINE) % access.word
    return [
        TileClass(valid, np.where(residue == begin, tiles, 0), full, TileOrigin(begin, corner))
        for corner, valid, tiles, full in (*at_ends, *others)
        for begin in np.unique(residue[tiles > 0]).tolist()
    ]


def corner_bytes(access: GlobalAccess) -> int:
    """Return the bytes from element (0, 0) of a matrix to the first of the region."""
    corner = sum(o * s for o, s in zip(access.origin, access.matrix.stride, strict=True))
    return corner * access.matrix.element.bytes


def tile_classes(
    matrix: Matrix, region: tuple[int, int], tile: tuple[int, int], base: int,
    steps: tuple[int, int] | None = None,
) -> list[TileClass]:  # fmt: skip
    """Sort the tiles of a region whose first element is at ``base``, without visiting any.

    ``steps``: distance from a tile to the next, at least the tile; by default tiles are adjacent.
    """
    modes = tuple(zip(region, tile, matrix.stride, steps or tile, strict=True))
    tile_sets = _tiles_by_extent(modes, matrix.element.bytes) if matrix.l else []
    return [
        tiled._replace(tiles=np.roll(in_batch(tiled.tiles, matrix), base % LINE))
        for tiled in tile_sets
    ]


def _tiles_by_extent(modes: tuple[tuple[int, int, int, int], ...], size: int) -> list[TileClass]:
    """Sort tiles by extent and residue of their first element; the region begins at 0.

    ``modes``: extent, tile extent, stride, and elements from a tile to the next, of each mode.
    """
    by_extent = [TileClass((), one_residue(0), True)]
    for extent, length, stride, every in modes:
        step = every * stride * size
        whole = max(0, (extent - length) // every + 1)
        rest = extent - whole * every
        options = []
        if whole:
            options.append((length, residue_histogram(whole, step), True))
        if rest > 0:
            options.append((rest, one_residue(whole * step), False))
        by_extent = [
            TileClass((*tiled.valid, valid), convolve(tiled.tiles, histogram), tiled.full and full)
            for tiled, (valid, histogram, full) in product(by_extent, options)
        ]
    return by_extent


def total(weights: np.ndarray, values: np.ndarray) -> int:
    """Sum ``weights * values`` in unbounded integers: totals of huge launches exceed 2**63."""
    if weights.dtype != object and float(weights.sum()) * float(values.max(initial=0)) < 2**62:
        return int((weights * values).sum())
    some = weights != 0
    each = np.broadcast_to(values, weights.shape)[some]
    return sum(map(mul, weights[some].tolist(), each.tolist()))


def _evaluate(
    access: GlobalAccess, patterns: _Patterns, tiles: np.ndarray
) -> tuple[GlobalCounts, WorstRequest | None, bool]:
    """Count the requests of tiles whose numbers per base residue are ``tiles``."""
    number = sum(tiles.tolist())
    off = patterns.off * number
    weights = convolve(patterns.histogram, tiles)  # [patterns, LINE]
    residues = np.flatnonzero(weights.any(axis=0))
    if not residues.size:
        return GlobalCounts(tiles=number, off=off), None, True
    weights = weights[:, residues]
    starts = patterns.starts[:, None, :] + residues[None, :, None]
    lengths = patterns.lengths[:, None, :]
    if patterns.targets is None:
        sectors = fetched = covered(starts, lengths, SECTOR)
    else:
        targets, span = patterns.targets[:, None, :], int(patterns.targets.max()) + 1
        sectors = _distinct(starts // LINE * span + targets)
        fetched = _distinct(starts // SECTOR * span + targets)
    lines = covered(starts, lengths, LINE)
    used = covered(patterns.starts, patterns.lengths, 1)[:, None]
    ideal = -(-used // SECTOR)
    occurs = weights > 0
    aligned = not bool(((starts % access.granule).any(axis=-1) & occurs).any())

    excess = np.where(occurs, fetched - ideal, -1)
    row, column = np.unravel_index(int(excess.argmax()), excess.shape)
    parts = runs(patterns.starts[row], patterns.lengths[row])
    pitches = {after[0] - before[0] for before, after in zip(parts, parts[1:], strict=False)}
    worst = WorstRequest(
        sectors=int(fetched[row, column]),
        ideal_sectors=int(ideal[row, 0]),
        lines=int(lines[row, column]),
        bytes=int(used[row, 0]),
        runs=len(parts),
        run_bytes=min(length for _, length in parts),
        pitch=pitches.pop() if len(pitches) == 1 else 0,
        fewest_sectors=sum(-(-length // SECTOR) for _, length in parts),
    )
    counts = GlobalCounts(
        tiles=number,
        requests=sum(weights.ravel().tolist()),
        off=off,
        lanes=total(weights, patterns.lanes[:, None]),
        sectors=total(weights, sectors),
        ideal_sectors=total(weights, ideal),
        lines=total(weights, lines),
        bytes=total(weights, used),
        l2_sectors=total(weights, fetched),
    )
    return counts, worst, aligned


def analyze(access: GlobalAccess, base: int | None = None) -> GlobalAnalysis:
    """Count requests, sectors, lines and bytes of one global-memory instruction.

    Counts are in units (requests, sectors of 32 bytes, lines of 128 bytes, bytes). The time does
    not depend on the extents of the matrix. ``base`` is the address of element (0, 0) in bytes, of
    which only the residue modulo 128 matters; by default it is ``base_residue``. ValueError if the
    access does not describe an instruction (``GlobalAccess.vector``). A warp that loads 32 adjacent
    aligned float32 values of a column touches 4 sectors of one line.

    A request moves the distinct 32-byte sectors that its active lanes touch, in any order of the
    lanes: NVIDIA, Nsight Compute documentation, "Memory tables"; metrics
    ``l1tex__t_requests_pipe_lsu_mem_global_op_{ld,st}.sum`` and ``l1tex__t_sectors_...``.

    ``cp.async`` of 16 bytes bypasses L1 on its way to shared memory. For it the same counter shows
    the distinct pairs of a line of global memory and a 32-byte sector of shared memory, and L2
    (``lts__t_sectors_srcunit_tex_op_read.sum``) the pairs of a sector of each. On an H200 both
    rules predicted every one of some hundred patterns. They differ from the sectors of the
    addresses only if a row is off a 32-byte boundary, or its vectors are not adjacent in it.
    """
    base = base_residue(access.matrix) if base is None else base
    tile, aligned = GlobalCounts(), True
    sums = {True: GlobalCounts(), False: GlobalCounts()}  # full tiles, partial tiles
    worsts: dict[bool, WorstRequest | None] = {True: None, False: None}
    corner = tuple(min(extent, tile) for extent, tile, _ in access.modes)
    begin = corner_bytes(access)
    first = TileOrigin((base + begin) % access.word, begin)
    for valid, tiles, full, place in classes(access, base):
        patterns = _patterns(access, valid, place)
        start = one_residue(base + begin) if valid == corner and place in (None, first) else None
        if start is not None and np.array_equal(tiles > 0, start > 0):
            # All lie like the first.
            tile, worst, fits = _evaluate(access, patterns, start)
            counts = tile.times(int(tiles.sum()))
        else:
            counts, worst, fits = _evaluate(access, patterns, tiles)
            tile = tile if start is None else _evaluate(access, patterns, start)[0]
        aligned = aligned and fits
        sums[full] += counts
        both = (request for request in (worsts[full], worst) if request is not None)
        worsts[full] = max(both, key=lambda x: x.sectors - x.ideal_sectors, default=None)
    interior, edge = sums[True], sums[False]
    launch = (interior + edge).times(access.sweeps)
    return GlobalAnalysis(tile, interior, edge, launch, worsts[bool(interior.tiles)], aligned)
