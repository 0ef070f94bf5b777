"""The config of ``thin`` and its structure: the elements that each lane of a warp has.

The large operand has the rows (M or N), the thin one the columns (N or M, up to 32).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from cute_gemm.cute.atoms import MMA_ATOMS, MmaAtom
from cute_gemm.kernels.config import Config
from cute_gemm.problem.operation import Operation

WARP = 32
#: Lanes of a warp along the rows, and along k.
ROW_LANES, DEPTH_LANES = 8, 4
#: Vectors that FMA takes of the thin operand at a time.
_CHUNK = 8


@dataclass(frozen=True, kw_only=True)
class ThinConfig(Config):
    """Everything that shapes the code of the kernel.

    The fields up to ``min_ctas`` may be set as options; the others follow from the problem.
    """

    kernel: ClassVar[str] = "thin"
    raster: ClassVar[int] = 1  #: There is one tile across: no CTAs share rows.
    thin: str  #: ``"m"`` or ``"n"``: the mode of up to 32.
    tile: tuple[int, int, int]  #: (bM, bN, bK): of a CTA, all warps along k.
    warps: int  #: They divide k.
    stages: int  #: k-tiles in shared memory or in flight; 1: they go to registers.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    mma: str  #: An `MmaAtom` of A's type, or ``""``: FMA.
    operation: Operation

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile."""
        parts = [
            f"thin_{self.thin}",
            self.operation.name,
            "x".join(map(str, self.tile)),
            f"w{self.warps}_s{self.stages}",
            self.operation.access_name,
            self.mma or "fma",
            f"o{self.min_ctas}",
        ]
        return "_".join(parts)

    @property
    def index(self) -> int:
        """Which of A and B is thin: 0 or 1."""
        return int(self.thin == "n")

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.tile[self.index]

    @property
    def rows(self) -> int:
        """Rows of the large operand that a lane has."""
        return self.tile[1 - self.index] // ROW_LANES

    @property
    def depth(self) -> int:
        """The k of a lane in each k-tile."""
        return self.tile[2] // (DEPTH_LANES * max(1, self.warps))

    @property
    def atom(self) -> MmaAtom | None:
        """The MMA atom, or None: FMA."""
        return MMA_ATOMS[self.mma] if self.mma else None


@dataclass(frozen=True)
class Part:
    """A lane's part of a block of an operand: the arguments of ``Part`` in part.cuh."""

    rows: int
    lanes: int  #: Lanes along the rows: those of a warp, or 1 if all have the same rows.
    run: int
    depth: int
    depth_run: int
    width: int  #: Elements of a vector.
    major: str  #: ``"K"`` or ``"MN"``.

    def row(self, lane: np.ndarray, i: np.ndarray) -> np.ndarray:
        """Return the i-th row of a row lane."""
        return (i // self.run * self.lanes + lane) * self.run + i % self.run

    def column(self, lane: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return the e-th k of a k lane."""
        return (e // self.depth_run * DEPTH_LANES + lane) * self.depth_run + e % self.depth_run

    @property
    def vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """The row and the k of a lane at which each of its vectors begins."""
        if self.major == "K":
            along = self.depth // self.width
            v = np.arange(self.rows * along)
            return v // along, v % along * self.width
        v = np.arange(self.rows // self.width * self.depth)
        return v // self.depth * self.width, v % self.depth

    def words(self, size: int) -> int:
        """Return the registers that elements of ``size`` bytes take."""
        return len(self.vectors[0]) * max(1, self.width * size // 4)

    def places(self, size: int) -> np.ndarray:
        """Return the bytes of shared memory at which each lane's vectors lie; int [vectors, 32]."""
        lane = np.arange(WARP)
        if self.major != "K":
            lane = lane % 4 * 8 + (lane // 4 ^ lane % 4 * 2)
        return (np.arange(len(self.vectors[0]))[:, None] * WARP + lane) * self.width * size

    def cpp(self, element: str) -> str:
        """Return the C++ type, of elements of a type."""
        numbers = (self.rows, self.lanes, self.run, self.depth, self.depth_run, self.width)
        major = "true" if self.major == "K" else "false"
        return f"cute_gemm::Part<{element}, {', '.join(map(str, numbers))}, {major}>"


@dataclass(frozen=True, eq=False)
class ThinStructure:
    """Values derived from a config: the lanes' parts, and the sums in shared memory.

    ``row_lane``, ``depth_lane``: index of each lane along the rows and along k; ``column_lane``:
    along the columns of the thin operand. ``queued``: whether the large and the thin operand go
    through shared memory; ``places``: for each, the bytes at which the vectors of a warp's lanes
    lie in its first stage, int [vectors, 32]; ``stage``: bytes of a stage. ``sums``: index of each
    sum that a lane stores, int [stores, 32], column by column, ``pitch`` sums each; ``held``:
    registers of a lane for its sums and operands.
    """

    large: Part
    thin: Part
    row_lane: np.ndarray
    depth_lane: np.ndarray
    column_lane: np.ndarray
    queued: tuple[bool, bool]
    places: tuple[np.ndarray, np.ndarray]
    stage: int
    pitch: int
    sums: np.ndarray
    held: int


@lru_cache(maxsize=4096)
def structure(config: ThinConfig) -> ThinStructure:
    """Derive the structure of a config."""
    operation, atom = config.operation, config.atom
    size = operation.a.bytes
    thin, rows, depth, columns = config.index, config.rows, config.depth, config.columns
    wide = [max(1, width // size) for width in operation.bytes[:2]]
    large_major, thin_major = operation.majors[1 - thin], operation.majors[thin]
    held = (
        columns // ROW_LANES
        if atom
        else max(1, min(columns, _CHUNK * 16 // (depth * size * max(1, size // 8))))
    )
    if large_major == "K":
        width = depth_run = min(wide[1 - thin], depth)
        run = 1
    else:
        width = run = min(wide[1 - thin], rows)
        depth_run = min(wide[thin], depth) if thin_major == "K" else 1
    large = Part(rows, ROW_LANES, run, depth, depth_run, width, large_major)
    thin_width = min(wide[thin], depth_run if thin_major == "K" else held)
    thin_run = 1 if thin_major == "K" else thin_width
    lanes = ROW_LANES if atom else 1
    few = Part(held, lanes, thin_run, depth, depth_run, thin_width, thin_major)

    lane = np.arange(WARP)
    row_lane, depth_lane = lane // 4, lane % 4
    column_lane = row_lane if atom else np.zeros(WARP, int)
    # Neighbouring lanes have neighbouring rows, and those along k other columns.
    pitch = ROW_LANES * rows + (4 if operation.majors[2] == "MN"[1 - thin] else 1)
    if atom:
        i, j, c = (x.reshape(-1, 1) for x in np.indices((rows, held, 2)))
        row, column = large.row(row_lane, i), few.row(2 * depth_lane + c, j)
    else:
        quarter = rows * columns // DEPTH_LANES
        sums = depth_lane * quarter + np.arange(quarter)[:, None]
        row, column = large.row(row_lane, sums % rows), sums // rows
    accumulator = operation.accumulator.bytes // 4
    registers = rows * columns * accumulator // (DEPTH_LANES if atom else 1)
    queued = config.stages > 1, config.stages > 1 and atom is not None and thin_width * size >= 4
    places = large.places(size), few.places(size) + large.words(size) * 4 * WARP
    return ThinStructure(
        large=large,
        thin=few,
        row_lane=row_lane,
        depth_lane=depth_lane,
        column_lane=column_lane,
        queued=queued,
        places=places,
        stage=4 * WARP * (large.words(size) + queued[1] * few.words(size)),
        pitch=pitch,
        sums=column * pitch + row,
        held=registers + large.words(size) + few.words(size),
    )
