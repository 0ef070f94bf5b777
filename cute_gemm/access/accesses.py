"""The vocabulary of accesses: what each memory instruction of a kernel moves, lane by lane.

A kernel lists its accesses in these terms; the model counts them, reports and pictures show them.
Beside them stand what it multiplies (``Work``), how results share what they read (``Shares``) and
how its threads divide a tile (``Partition``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from cute_gemm.cute.layout import Layout
    from cute_gemm.problem.matrix import Matrix
    from cute_gemm.problem.problem import GemmProblem

Direction = Literal["load", "store"]
#: What becomes of a vector that straddles the end of its row: the part inside is moved, all of it
#: (what lies beyond is never used), none of it, or, one instruction for each, its elements.
Tail = Literal["cut", "whole", "full", "elements"]


#: Bytes of which a bulk copy's size and addresses are multiples.
BULK_BYTES = 16


def is_bulk(instruction: str) -> bool:
    """Whether one thread moves a run of bytes by it, however long."""
    return instruction.endswith("async.bulk")


class TileOrigin(NamedTuple):
    """Where a tile lies, as far as the words that cover its rows depend on it."""

    residue: int  #: Address of its first element modulo a word.
    #: Bytes from the matrix's first element to it; None for a tile whose words all lie inside.
    corner: int | None


class Option(NamedTuple):
    """A value of a kernel's option: ``copy="auto"``; of ``kernel``, another kernel."""

    name: str
    value: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"'


class OfMatrix(NamedTuple):
    """What of a matrix limits an access or would fix it, with its bytes, and that in words."""

    matrix: str
    what: str  #: ``"base"``, ``"ld"`` or ``"extent"``.
    bytes: int
    words: str

    def __str__(self) -> str:
        return self.words


class LimitOfOption(NamedTuple):
    """That an option keeps vectors from being wider: why, and what is so of this operand."""

    option: Option
    why: str
    own: str

    def __str__(self) -> str:
        name, value = self.option
        return f"{name}={value!r} {self.why}, and {self.own}"


Limit = str | OfMatrix | LimitOfOption


class _Common:
    """What is so of accesses of which no field says something else."""

    space = "global"
    times = tiles = 1
    tail: Tail = "cut"
    words = False


@dataclass(frozen=True, eq=False)
class GlobalAccess(_Common):
    """One global-memory instruction of a kernel: which elements each lane of each request moves.

    The requests are those of one visit of one tile (all warps of the CTA). Lanes whose vector lies
    outside the region are predicated off. Of a batch it stands for all matrices: each is visited
    alike, and so counted. Where a CTA has ``group`` products of the batch, a visit is of the tiles
    of so many matrices, and lanes may move elements of different ones (``products``).
    """

    operand: str  #: ``"A"``.
    direction: Direction
    instruction: str  #: ``"cp.async"``.
    bits: int  #: Per thread.
    #: The matrix in memory: shape, strides (elements), dtype, alignment of its base address.
    matrix: Matrix
    #: Extents of the tile, in the modes of ``matrix``; the launch visits every tile of the region.
    tile: tuple[int, int]
    #: int array [requests, 32, 2]: the first element of each lane's vector, relative to the tile's
    #: corner. A lane that never takes part has -1 in both.
    coords: np.ndarray
    axis: int  #: The mode along which the vector runs.
    sweeps: int  #: How often the launch visits each tile (A: once per column of CTAs).
    #: What keeps the vector from being wider, or "" at 128 bits.
    limit: Limit = ""
    fix: str | Option | OfMatrix = ""  #: What would fix a bad verdict, or "".
    #: First element and shape of the region of the matrix whose tiles are visited; by default all.
    origin: tuple[int, int] = (0, 0)
    extents: tuple[int, int] | None = None
    #: What becomes of a vector that straddles the end of the region along ``axis``. With
    #: ``"elements"`` only such vectors take part, and ``bits`` is an element's: request ``r`` of
    #: ``coords`` stands for one request per element of ``width``, which are numbers ``r * width +
    #: i``.
    tail: Tail = "cut"
    width: int = 1  #: Elements of a straddling vector (``tail="elements"``).
    #: Whether only the vectors of the region's last row or column straddle its end, and the others
    #: are read whole, since the next row or column begins behind them.
    only_last: bool = False
    #: Whether a lane moves, not a vector from its element on, but the aligned word of as many bytes
    #: that covers that element: one that has any of the row's elements in the region, and lies in
    #: the matrix. With ``"elements"``: one that lies across the matrix's end.
    words: bool = False
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What one visit belongs to.
    #: Which part of the launch this is, when the instruction has several (``"last k-tile"``).
    part: str = ""
    #: Of ``cp.async``: int array [requests, 32], the byte of shared memory that each lane's vector
    #: goes to. Copies of 16 bytes bypass L1, and their sectors depend on it (``gmem.analyze``).
    targets: np.ndarray | None = None
    #: int array [requests, 32]: the matrix, of those that a CTA visits together, of each lane's
    #: vector; None where a CTA visits one.
    products: np.ndarray | None = None
    group: int = 1  #: Matrices of a batch that a CTA visits together.
    #: int array [requests]: how many elements of the region a lane must have along ``axis``, from
    #: its first one on, to take part; None where it takes part with one.
    least: np.ndarray | None = None
    tiles: int = 1  #: Tiles of CTAs that a visit is of.

    @property
    def region(self) -> tuple[int, int]:
        """Shape of what is visited."""
        return self.matrix.shape if self.extents is None else self.extents

    @property
    def granule(self) -> int:
        """Bytes of which the hardware wants every lane's address to be a multiple."""
        return BULK_BYTES if is_bulk(self.instruction) else self.bits // 8

    @property
    def vector(self) -> tuple[int, int]:
        """Bytes of an element, and elements that a lane moves at a time.

        ValueError when ``bits`` is no whole number of elements, or the vector runs along a mode
        whose stride is not 1.
        """
        size = self.matrix.element.bytes
        width, rest = divmod(self.bits, 8 * size)
        if width < 1 or rest:
            raise ValueError(
                f"operand {self.operand}: bits is {self.bits}, expected a multiple of the "
                f"{8 * size} bits of {self.matrix.dtype}"
            )
        stride = self.matrix.stride[self.axis]
        if width > 1 and stride != 1:
            raise ValueError(
                f"operand {self.operand}: a vector of {width} elements runs along mode "
                f"{self.axis}, whose stride is {stride}; expected the mode of stride 1"
            )
        return size, width

    @property
    def modes(self) -> tuple[tuple[int, int, int], ...]:
        """Extent, extent of a tile, and stride of the modes that are tiled.

        They are the region's two and, where a CTA visits several matrices, the batch.
        """
        modes = tuple(zip(self.region, self.tile, self.matrix.stride, strict=True))
        if self.products is None:
            return modes
        return (*modes, (self.matrix.l, self.group, self.matrix.batch_stride))

    def tile_extents(self) -> Iterator[tuple[int, ...]]:
        """Return the extents in each mode that tiles of the region have, each once."""
        return product(
            *(
                [tile] * (extent >= tile) + [extent % tile] * (extent % tile > 0)
                for extent, tile, _ in self.modes
            )
        )

    def _left(self, valid: tuple[int, ...]) -> np.ndarray:
        """Elements from each lane's first to the end of the region; 0 for lanes that are off."""
        coords = np.asarray(self.coords, np.int64).reshape(-1, 32, 2)
        # NumPy takes ten times as long for `all` along so short an axis.
        takes_part = (coords[..., 0] >= 0) & (coords[..., 1] >= 0)
        takes_part &= coords[..., 1 - self.axis] < valid[1 - self.axis]
        if self.products is not None:
            takes_part &= self.products < (valid[2] if len(valid) > 2 else self.group)
        left = valid[self.axis] - coords[..., self.axis]
        if self.least is not None:
            takes_part &= left >= self.least[:, None]
        return np.where(takes_part, left, 0)

    def straddling(self, valid: tuple[int, ...]) -> np.ndarray:
        """Which lanes' vectors the region's end cuts, of a tile of ``valid`` elements in each mode.

        bool [requests, 32].
        """
        width = self.width if self.tail == "elements" else self.vector[1]
        left = self._left(valid)
        cut = (left > 0) & (left < width)
        if self.only_last:
            coords = np.asarray(self.coords, np.int64).reshape(-1, 32, 2)
            cut &= coords[..., 1 - self.axis] == valid[1 - self.axis] - 1
        return cut

    @property
    def word(self) -> int:
        """Bytes of a lane's vector, or of the word that it goes in elements of."""
        return self.width * self.bits // 8

    def _words(self, valid: tuple[int, ...], place: TileOrigin) -> tuple[np.ndarray, np.ndarray]:
        size, (coords, matrix) = self.vector[0], (self.coords, self.matrix)
        coords = np.asarray(coords, np.int64).reshape(-1, 32, 2)
        starts = (coords @ np.asarray(matrix.stride, np.int64)) * size
        shift = (place.residue + starts) % self.word
        starts = starts - shift
        some = (coords[..., 0] >= 0) & (coords[..., 1] >= 0)
        some &= coords[..., 1 - self.axis] < valid[1 - self.axis]
        some &= coords[..., self.axis] * size - shift < valid[self.axis] * size
        extents = zip(matrix.shape, matrix.stride, strict=True)
        end = size * (1 + sum((extent - 1) * stride for extent, stride in extents))
        first = np.int64(0) if place.corner is None else place.corner + starts
        inside = (first >= 0) & ((first + self.word <= end) | (place.corner is None))
        if self.tail != "elements":
            return starts, np.where(some & inside, self.word, 0)
        step = np.arange(self.width)[None, :, None] * size
        each = np.broadcast_to(first, starts.shape)[:, None, :] + step
        some = (some & ~inside)[:, None, :] & (each >= 0) & (each < end)
        starts = (starts[:, None, :] + step).reshape(-1, 32)
        return starts, np.where(some, size, 0).reshape(-1, 32)

    def lanes(
        self, valid: tuple[int, ...], place: TileOrigin | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """First byte and number of bytes of every lane of every request of a tile.

        ``valid``: elements of the tile that lie in the region, in each mode. Both are int64
        [requests, 32]: bytes from the tile's corner, and 0 bytes where a lane takes no part. With
        ``tail="elements"`` there are ``width`` requests for each in ``coords``. ``place``: of the
        tile, where words are moved; by default one that begins with a word.
        """
        if self.words:
            return self._words(valid, place or TileOrigin(0, None))
        size, width = self.vector
        coords = np.asarray(self.coords, np.int64).reshape(-1, 32, 2)
        down, across = self.matrix.stride
        starts = (coords[..., 0] * down + coords[..., 1] * across) * size
        if self.products is not None:
            starts = starts + self.products * self.matrix.batch_bytes
        left = self._left(valid)
        if self.tail == "elements":
            step = np.arange(self.width)[None, :, None]
            along = self.matrix.stride[self.axis] * size
            starts = (starts[:, None, :] + step * along).reshape(-1, 32)
            left = np.where(self.straddling(valid), left, 0)[:, None, :]
            return starts, np.where(step < left, size, 0).reshape(-1, 32)
        inside = np.clip(left, 0, width)
        if self.tail == "whole":
            inside = np.where(inside > 0, width, 0)
        elif self.tail == "full":
            inside = np.where((left > 0) & ~self.straddling(valid), width, 0)
        return starts, inside * size


@dataclass(frozen=True, eq=False)
class SharedAccess(_Common):
    """One shared-memory instruction of a kernel."""

    operand: str  #: ``"A"``.
    direction: Direction
    instruction: str  #: ``"ldmatrix.x4"``.
    bits: int  #: Per thread.
    #: int array [requests, 32]: byte offset of each lane's vector; for ldmatrix and stmatrix lane i
    #: gives row i % 8 of matrix i // 8, as the instruction takes them. -1: lane inactive.
    offsets: np.ndarray
    #: How often the whole launch executes this list of requests; with a ``guard`` that follows from
    #: it, and this is left 0.
    executions: int = 0
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What an execution belongs to,
    times: int = 1  #: and how many of them: an epilogue goes through shared memory part by part.
    fix: str | Option | OfMatrix = ""  #: What would fix a bad verdict, or "".
    #: The global access, request by request the same, under whose predicate this one stands
    #: (``cp.async`` itself; staged sums that are stored to C); None when every lane takes part.
    guard: GlobalAccess | None = None
    zero_fill: bool = False  #: Whether what the guard leaves out is written all the same, as zeros.
    #: Of ``cp.async``: the global access whose addresses it copies from, when there is no guard.
    source: GlobalAccess | None = None
    #: Where known: the layout of the tile in shared memory (elements; one stage), the coordinates
    #: int [requests, 32, 2] of the lanes' vectors in it, and the width of an element; then
    #: ``offsets`` is ``layout(coords)`` in bytes.
    layout: Layout | None = None
    coords: np.ndarray | None = None
    element_bits: int = 0
    part: str = ""  #: Which part of the launch this is, when the instruction has several.
    limit: str = ""  #: What keeps the vector from being wider, or "".

    space = "shared"


@dataclass(frozen=True, eq=False)
class TmaAccess(_Common):
    """One bulk tensor copy (TMA) between global and shared memory."""

    operand: str  #: ``"A"``.
    direction: Direction
    matrix: Matrix  #: The matrix in memory.
    box: tuple[int, int]  #: Extents of what one instruction moves, in the modes of ``matrix``.
    #: How often each box is delivered to a CTA (a multicast load counts for each CTA it serves).
    sweeps: int
    swizzle: int = 0  #: Bytes of the swizzle's span: 0, 32, 64 or 128.
    multicast: int = 1  #: CTAs of a cluster that one load serves.
    #: Shape of what the launch moves, all of its boxes; by default the matrix. What lies outside of
    #: the matrix is moved as zeros, or not stored; a box may lie there as a whole.
    extents: tuple[int, int] | None = None
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What the instruction belongs to,
    times: int = 1  #: and how many of them that a CTA issues.
    part: str = ""  #: Which part of the launch this is, when the instruction has several.
    fix: str = ""  #: What would fix a bad verdict, or "".
    modes: int = 2  #: Of the tensor map; the matrix's two, and more of which a box has one each.
    #: Along the unit-stride mode, from the first box of a tile to that of the next one, where the
    #: last box of a tile has elements of the next tile too; 0: boxes lie side by side.
    pitch: int = 0

    #: What it is called as an instruction; it has no lanes whose vectors could be wider.
    instruction: ClassVar[str] = "TMA"
    bits: ClassVar[int] = 0
    limit: ClassVar[str] = ""

    @property
    def boxes(self) -> int:
        """Boxes that are moved, each once, of all matrices of the batch."""
        shape = self.matrix.shape if self.extents is None else self.extents
        both = [-(-extent // side) for extent, side in zip(shape, self.box, strict=True)]
        if self.pitch:
            unit = self.matrix.unit
            both[unit] = -(-shape[unit] // self.pitch) * len(self.first_boxes)
        return self.matrix.l * prod(both)

    @property
    def first_boxes(self) -> range:
        """Where the boxes of a tile begin along the unit-stride mode."""
        side = self.box[self.matrix.unit]
        return range(0, self.pitch or side, side)


Access = GlobalAccess | SharedAccess | TmaAccess


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch multiplies."""

    ctas: int  #: CTAs that have a tile of C.
    #: Real products that they make, those past the edges of C and K included; a complex one is
    #: four.
    products: int
    unit: Literal["tensor cores", "CUDA cores"]  #: What makes them.
    rate: str  #: The type whose rate theirs is: a key of ``Gpu.peak`` (``"tf32"``).

    @classmethod
    def of_tiles(
        cls, problem: GemmProblem, tile: tuple[int, int, int],
        unit: Literal["tensor cores", "CUDA cores"], rate: str,
    ) -> Work:  # fmt: skip
        """The work of a CTA for each tile (bM, bN, bK), all of which is multiplied."""
        tiles = [
            -(-extent // size) for extent, size in zip(problem.extents.values(), tile, strict=True)
        ]
        real = 4 if problem.is_complex else 1
        ctas = tiles[0] * tiles[1] * problem.l
        return cls(ctas, ctas * tiles[2] * prod(tile) * real, unit, rate)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many results share an element of A and of B on its way."""

    #: Rows and columns of C that what is loaded from global memory serves; (1, 1): one result.
    cta: tuple[int, int]
    #: Rows and columns of C that what is read from shared memory serves: a thread's results or,
    #: with tensor cores, a warp's; None without shared memory.
    reader: tuple[int, int] | None
    #: What ``cta`` and ``reader`` are called.
    names: tuple[tuple[str, str], tuple[str, str]] = (("bM", "bN"), ("TM", "TN"))

    @classmethod
    def of_warps(
        cls, tile: tuple[int, ...], warps: tuple[int, int], lanes: tuple[int, int] | None
    ) -> Shares:
        """Of a CTA tile that ``warps`` divide, and their ``lanes``; None where warps multiply."""
        cta = (tile[0], tile[1])
        warp = (cta[0] // warps[0], cta[1] // warps[1])
        if lanes is None:
            return cls(cta, warp, (("bM", "bN"), ("wM", "wN")))
        return cls(cta, (warp[0] // lanes[0], warp[1] // lanes[1]))


@dataclass(frozen=True, eq=False, slots=True)
class Partition:
    """How the threads of a CTA divide a tile of an operand."""

    operand: str  #: ``"A"``.
    what: str  #: ``"gmem copy"``.
    layouts: str  #: ``"threads (32,4):(4,1), values (1,8):(0,1)"``.
    table: np.ndarray  #: int array [threads, values, 2]: coordinates in the tile, -1 for none.
    extents: tuple[int, int]  #: Of the tile.
