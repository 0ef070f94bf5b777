"""Descriptions of accesses: what each memory instruction of a kernel moves, lane by lane.

A kernel lists its accesses in these terms. The model counts them; reports and pictures show them.
Other descriptions are the kernel's products (``Work``), how results share loads (``Shares``) and
how threads divide a tile (``Partition``).
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
#: How a vector that straddles the end of its row is moved: the part inside, all of it (the rest is
#: never used), none of it, or its elements with one instruction each.
Tail = Literal["cut", "whole", "full", "elements"]


#: The size and addresses of a bulk copy are multiples of this many bytes.
BULK_BYTES = 16


def is_bulk(instruction: str) -> bool:
    """Return whether one thread moves a run of bytes of any length with this instruction."""
    return instruction.endswith("async.bulk")


class TileOrigin(NamedTuple):
    """The place of a tile, which determines the words that cover its rows."""

    residue: int  #: Address of its first element modulo a word.
    #: Bytes to it from the matrix's first element; None for a tile whose words all lie inside.
    corner: int | None


class Option(NamedTuple):
    """A value of a kernel's option: ``copy="auto"``; ``kernel`` is an option too."""

    name: str
    value: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"'


class OfMatrix(NamedTuple):
    """A property of a matrix that limits an access or would fix it, its bytes, and its text."""

    matrix: str
    what: str  #: ``"base"``, ``"ld"`` or ``"extent"``.
    bytes: int
    words: str

    def __str__(self) -> str:
        return self.words


class LimitOfOption(NamedTuple):
    """An option that limits the width of vectors: the reason, and the reason for this operand."""

    option: Option
    why: str
    own: str

    def __str__(self) -> str:
        name, value = self.option
        return f"{name}={value!r} {self.why}, and {self.own}"


Limit = str | OfMatrix | LimitOfOption


class _Common:
    """Defaults of accesses without a field of this name."""

    space = "global"
    times = tiles = 1
    tail: Tail = "cut"
    words = False


@dataclass(frozen=True, eq=False)
class GlobalAccess(_Common):
    """One global-memory instruction of a kernel: which elements each lane of each request moves.

    The requests are those of one visit of one tile (all warps of the CTA). Lanes whose vector lies
    outside the region are predicated off. For a batch the access stands for all matrices, which
    are visited and counted alike. If a CTA has ``group`` products of the batch, a visit covers the
    tiles of that many matrices, and lanes may move elements of different ones (``products``).
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
    fix: str | Option | OfMatrix = ""  #: The fix of a bad verdict, or "".
    #: First element and shape of the matrix's region whose tiles are visited; by default all.
    origin: tuple[int, int] = (0, 0)
    extents: tuple[int, int] | None = None
    #: How a vector that straddles the end of the region along ``axis`` is moved. With
    #: ``"elements"`` only such vectors take part, and ``bits`` is an element's: request ``r`` of
    #: ``coords`` stands for ``width`` requests, one per element, with numbers ``r * width + i``.
    tail: Tail = "cut"
    width: int = 1  #: Elements of a straddling vector (``tail="elements"``).
    #: Whether only vectors in the region's last row or column straddle its end. Others are read
    #: whole, since the next row or column follows them.
    only_last: bool = False
    #: Whether a lane moves the aligned word that covers its element, instead of a vector from that
    #: element on. The word must lie in the matrix and have elements of the row in the region. With
    #: ``"elements"``, it lies across the matrix's end.
    words: bool = False
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What one visit belongs to.
    #: The part of the launch, if the instruction has several (``"last k-tile"``).
    part: str = ""
    #: For ``cp.async``: int array [requests, 32], the byte of shared memory to which each lane's
    #: vector goes. Copies of 16 bytes bypass L1; their sectors depend on it (``gmem.analyze``).
    targets: np.ndarray | None = None
    #: int array [requests, 32]: the matrix of each lane's vector, if a CTA visits several together;
    #: None if it visits one.
    products: np.ndarray | None = None
    group: int = 1  #: Matrices of a batch that a CTA visits together.
    #: int array [requests]: elements of the region along ``axis``, from a lane's first one on, that
    #: the lane needs to take part; None for one.
    least: np.ndarray | None = None
    tiles: int = 1  #: CTA tiles per visit.

    @property
    def region(self) -> tuple[int, int]:
        """Shape of the visited region."""
        return self.matrix.shape if self.extents is None else self.extents

    @property
    def granule(self) -> int:
        """Bytes of which the hardware requires every lane's address to be a multiple."""
        return BULK_BYTES if is_bulk(self.instruction) else self.bits // 8

    @property
    def vector(self) -> tuple[int, int]:
        """Bytes of an element, and elements that a lane moves at a time.

        ValueError if ``bits`` is not a multiple of the element's bits, or the vector runs along a
        mode whose stride is not 1.
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
        """Extent, tile extent and stride of the tiled modes.

        They are the region's two modes and, if a CTA visits several matrices, the batch.
        """
        modes = tuple(zip(self.region, self.tile, self.matrix.stride, strict=True))
        if self.products is None:
            return modes
        return (*modes, (self.matrix.l, self.group, self.matrix.batch_stride))

    def tile_extents(self) -> Iterator[tuple[int, ...]]:
        """Yield the distinct extents of tiles of the region in each mode."""
        return product(
            *(
                [tile] * (extent >= tile) + [extent % tile] * (extent % tile > 0)
                for extent, tile, _ in self.modes
            )
        )

    def _places(self, valid: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the coordinates [requests, 32, 2], and which lanes take part across `axis`."""
        coords = np.asarray(self.coords, np.int64).reshape(-1, 32, 2)
        # NumPy takes ten times as long for `all` along such a short axis.
        takes_part = (coords[..., 0] >= 0) & (coords[..., 1] >= 0)
        takes_part &= coords[..., 1 - self.axis] < valid[1 - self.axis]
        return coords, takes_part

    def _left(self, valid: tuple[int, ...]) -> np.ndarray:
        """Return elements from each lane's first to the end of the region; 0 for inactive lanes."""
        coords, takes_part = self._places(valid)
        if self.products is not None:
            takes_part &= self.products < (valid[2] if len(valid) > 2 else self.group)
        left = valid[self.axis] - coords[..., self.axis]
        if self.least is not None:
            takes_part &= left >= self.least[:, None]
        return np.where(takes_part, left, 0)

    def straddling(self, valid: tuple[int, ...]) -> np.ndarray:
        """Return which lanes' vectors cross the region's end in a tile of ``valid`` elements.

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
        """Bytes of a lane's vector, or of the word that covers its elements."""
        return self.width * self.bits // 8

    def _words(self, valid: tuple[int, ...], place: TileOrigin) -> tuple[np.ndarray, np.ndarray]:
        size, matrix = self.vector[0], self.matrix
        coords, some = self._places(valid)
        starts = (coords @ np.asarray(matrix.stride, np.int64)) * size
        shift = (place.residue + starts) % self.word
        starts = starts - shift
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
        """Return first byte and number of bytes of every lane of every request of a tile.

        ``valid``: elements of the tile in the region, in each mode. Both results are int64
        [requests, 32]: bytes from the tile's corner, and 0 bytes for inactive lanes. With
        ``tail="elements"`` there are ``width`` requests for each in ``coords``. ``place``: place of
        the tile, if words are moved; by default one that begins with a word.
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
    #: int array [requests, 32]: byte offset of each lane's vector, -1 for an inactive lane. For
    #: ldmatrix and stmatrix lane i gives row i % 8 of matrix i // 8.
    offsets: np.ndarray
    #: How often the launch executes these requests; 0 with a ``guard``, from which it follows.
    executions: int = 0
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What an execution belongs to.
    times: int = 1  #: Units per CTA: an epilogue goes through shared memory part by part.
    fix: str | Option | OfMatrix = ""  #: The fix of a bad verdict, or "".
    #: The global access whose predicate guards this one, request by request (``cp.async`` itself,
    #: or staged accumulators that are stored to C); None if every lane takes part.
    guard: GlobalAccess | None = None
    zero_fill: bool = False  #: Whether lanes that the guard disables write zeros.
    #: For ``cp.async`` without a guard: the global access from whose addresses it copies.
    source: GlobalAccess | None = None
    #: If known, the layout of the tile in shared memory (elements; one stage), the coordinates
    #: int [requests, 32, 2] of the lanes' vectors in it, and the width of an element; then
    #: ``offsets`` is ``layout(coords)`` in bytes.
    layout: Layout | None = None
    coords: np.ndarray | None = None
    element_bits: int = 0
    part: str = ""  #: The part of the launch, if the instruction has several.
    limit: str = ""  #: What keeps the vector from being wider, or "".

    space = "shared"


@dataclass(frozen=True, eq=False)
class TmaAccess(_Common):
    """One bulk tensor copy (TMA) between global and shared memory."""

    operand: str  #: ``"A"``.
    direction: Direction
    matrix: Matrix  #: The matrix in memory.
    box: tuple[int, int]  #: Extents that one instruction moves, in the modes of ``matrix``.
    #: How often each box is delivered to a CTA (a multicast load counts for each CTA it serves).
    sweeps: int
    swizzle: int = 0  #: Bytes of the swizzle's span: 0, 32, 64 or 128.
    multicast: int = 1  #: CTAs of a cluster that one load serves.
    #: Shape of all boxes that the launch moves; by default that of the matrix. Elements outside the
    #: matrix are loaded as zeros or not stored; a whole box may lie outside.
    extents: tuple[int, int] | None = None
    unit: Literal["k-tile", "CTA"] = "k-tile"  #: What the instruction belongs to.
    times: int = 1  #: Units per CTA.
    part: str = ""  #: The part of the launch, if the instruction has several.
    fix: str = ""  #: The fix of a bad verdict, or "".
    modes: int = 2  #: Modes of the tensor map: the matrix's two, and more with a box extent of 1.
    #: Distance along the unit-stride mode from the first box of a tile to that of the next, if the
    #: last box of a tile has elements of the next tile too; 0: boxes are adjacent.
    pitch: int = 0

    #: Name of the instruction, which has no lanes whose vectors could be wider.
    instruction: ClassVar[str] = "TMA"
    bits: ClassVar[int] = 0
    limit: ClassVar[str] = ""

    @property
    def boxes(self) -> int:
        """Number of boxes in all matrices of the batch, each counted once."""
        shape = self.matrix.shape if self.extents is None else self.extents
        both = [-(-extent // side) for extent, side in zip(shape, self.box, strict=True)]
        if self.pitch:
            unit = self.matrix.unit
            both[unit] = -(-shape[unit] // self.pitch) * len(self.first_boxes)
        return self.matrix.l * prod(both)

    @property
    def first_boxes(self) -> range:
        """First elements of the boxes of a tile along the unit-stride mode."""
        side = self.box[self.matrix.unit]
        return range(0, self.pitch or side, side)


Access = GlobalAccess | SharedAccess | TmaAccess


@dataclass(frozen=True, slots=True)
class Work:
    """The products that a launch computes."""

    ctas: int  #: CTAs that have a tile of C.
    #: Real products that they compute, also beyond the edges of C and K; a complex product counts
    #: four.
    products: int
    unit: Literal["tensor cores", "CUDA cores"]  #: The hardware unit that computes them.
    rate: str  #: The type that determines the rate: a key of ``Gpu.peak`` (``"tf32"``).

    @classmethod
    def of_tiles(
        cls, problem: GemmProblem, tile: tuple[int, int, int],
        unit: Literal["tensor cores", "CUDA cores"], rate: str,
    ) -> Work:  # fmt: skip
        """Return the work of one CTA per tile (bM, bN, bK), which computes the whole tile."""
        tiles = [
            -(-extent // size) for extent, size in zip(problem.extents.values(), tile, strict=True)
        ]
        real = 4 if problem.is_complex else 1
        ctas = tiles[0] * tiles[1] * problem.l
        return cls(ctas, ctas * tiles[2] * prod(tile) * real, unit, rate)


@dataclass(frozen=True, slots=True)
class Shares:
    """How many results share an element of A and of B."""

    #: Rows and columns of C that a load from global memory serves; (1, 1): one result.
    cta: tuple[int, int]
    #: Rows and columns of C that a read from shared memory serves: a thread's results or, with
    #: tensor cores, a warp's; None without shared memory.
    reader: tuple[int, int] | None
    #: Names of ``cta`` and ``reader``.
    names: tuple[tuple[str, str], tuple[str, str]] = (("bM", "bN"), ("TM", "TN"))

    @classmethod
    def of_warps(
        cls, tile: tuple[int, ...], warps: tuple[int, int], lanes: tuple[int, int] | None
    ) -> Shares:
        """Return the shares of a CTA tile that ``warps`` divide, and ``lanes``, None for MMA."""
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
    extents: tuple[int, int]  #: Extents of the tile.
