"""The config of ``thin``, and the elements of each lane of a warp that it determines.

Rows (M or N) are those of the large operand, columns (N or M, up to 32) those of the thin one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from cute_gemm.cute.atoms import MMA_ATOMS, MmaAtom
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import derived
from cute_gemm.problem.operation import Operation

WARP = 32
#: Lanes of a warp along the rows, and along k.
ROW_LANES, DEPTH_LANES = 8, 4
#: Index of each lane of a warp along the rows, and along k.
ROW_LANE, DEPTH_LANE = np.arange(WARP) // 4, np.arange(WARP) % 4
#: Vectors of the thin operand that FMA uses at a time.
_CHUNK = 8


@dataclass(frozen=True)
class Part:
    """A lane's part of a block of an operand: the arguments of ``Part`` in ``part.cuh``."""

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
        """Return the registers for elements of ``size`` bytes."""
        return len(self.vectors[0]) * max(1, self.width * size // 4)

    def places(self, size: int) -> np.ndarray:
        """Return addresses in shared memory of each lane's vectors, in bytes; int [vectors, 32]."""
        lane = np.arange(WARP)
        if self.major != "K":
            lane = lane % 4 * 8 + (lane // 4 ^ lane % 4 * 2)
        return (np.arange(len(self.vectors[0]))[:, None] * WARP + lane) * self.width * size

    def cpp(self, element: str) -> str:
        """Return the C++ type for an element type."""
        numbers = (self.rows, self.lanes, self.run, self.depth, self.depth_run, self.width)
        major = "true" if self.major == "K" else "false"
        return f"cute_gemm::Part<{element}, {', '.join(map(str, numbers))}, {major}>"


@dataclass(frozen=True, kw_only=True)
class ThinConfig(Config):
    """Everything that shapes the code of the kernel.

    The fields up to ``min_ctas`` may be set as options; the others follow from the problem.
    """

    kernel: ClassVar[str] = "thin"
    raster: ClassVar[int] = 1  #: There is one tile across, so CTAs share no rows.
    thin: str  #: ``"m"`` or ``"n"``: the mode of extent up to 32.
    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile, with all warps along k.
    warps: int  #: Warps of a CTA, which divide k.
    stages: int  #: k-tiles in shared memory or in flight; 1: they are loaded to registers.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    mma: str  #: An `MmaAtom` of A's type, or ``""``: FMA.
    operation: Operation

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile."""
        return symbol(
            f"thin_{self.thin}", self.operation.name, self.tile, f"w{self.warps}_s{self.stages}",
            self.operation.access_name, self.mma or "fma", f"o{self.min_ctas}",
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * self.warps

    @property
    def index(self) -> int:
        """Index of the thin operand: 0 for A, 1 for B."""
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

    @derived
    def large(self) -> Part:
        """A lane's part of a block of the large operand."""
        rows, depth = self.rows, self.depth
        large, thin = self._vectors
        if self._majors[0] == "K":
            width = min(large, depth)
            return Part(rows, ROW_LANES, 1, depth, width, width, "K")
        width = min(large, rows)
        depth_run = min(thin, depth) if self._majors[1] == "K" else 1
        return Part(rows, ROW_LANES, width, depth, depth_run, width, self._majors[0])

    @derived
    def few(self) -> Part:
        """A lane's part of a block of the thin operand."""
        size, depth, columns = self.operation.a.bytes, self.depth, self.columns
        held = columns // ROW_LANES
        if not self.mma:
            held = max(1, min(columns, _CHUNK * 16 // (depth * size * max(1, size // 8))))
        major, depth_run, vector = self._majors[1], self.large.depth_run, self._vectors[1]
        width = min(vector, depth_run if major == "K" else held)
        run, lanes = 1 if major == "K" else width, ROW_LANES if self.mma else 1
        return Part(held, lanes, run, depth, depth_run, width, major)

    @property
    def _majors(self) -> tuple[str, str]:
        """Majors of the large and of the thin operand."""
        majors = self.operation.majors
        return majors[1 - self.index], majors[self.index]

    @property
    def _vectors(self) -> tuple[int, int]:
        """Elements of the widest access of the large and of the thin operand."""
        large, thin = (
            max(1, self.operation.bytes[index] // self.operation.a.bytes)
            for index in (1 - self.index, self.index)
        )
        return large, thin

    @property
    def queued(self) -> tuple[bool, bool]:
        """Whether the large and the thin operand pass through shared memory."""
        several = self.stages > 1
        wide = self.few.width * self.operation.a.bytes >= 4
        return several, several and bool(self.mma) and wide

    @derived
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Addresses of the vectors of a warp's lanes in its first stage, in bytes, by operand.

        Arrays of the large and of the thin operand: int [vectors, 32].
        """
        size, large = self.operation.a.bytes, self.large
        return large.places(size), self.few.places(size) + large.words(size) * 4 * WARP

    @property
    def stage(self) -> int:
        """Bytes of a stage of a warp."""
        size, (_, queued) = self.operation.a.bytes, self.queued
        return 4 * WARP * (self.large.words(size) + queued * self.few.words(size))

    @property
    def pitch(self) -> int:
        """Accumulators of a column in shared memory.

        Neighbouring lanes have neighbouring rows; lanes along k have different columns.
        """
        along_rows = self.operation.majors[2] == "MN"[1 - self.index]
        return ROW_LANES * self.rows + (4 if along_rows else 1)

    @derived
    def accumulators(self) -> np.ndarray:
        """Index of each accumulator that a lane stores, int [stores, 32], column by column."""
        rows, columns, large, few = self.rows, self.columns, self.large, self.few
        if self.mma:
            i, j, c = (x.reshape(-1, 1) for x in np.indices((rows, few.rows, 2)))
            row, column = large.row(ROW_LANE, i), few.row(2 * DEPTH_LANE + c, j)
        else:
            quarter = rows * columns // DEPTH_LANES
            accumulators = DEPTH_LANE * quarter + np.arange(quarter)[:, None]
            row, column = large.row(ROW_LANE, accumulators % rows), accumulators // rows
        return np.asarray(column * self.pitch + row)

    @property
    def held(self) -> int:
        """Registers of a lane for accumulators and operands."""
        accumulators = self.rows * self.columns * (self.operation.accumulator.bytes // 4)
        words = sum(part.words(self.operation.a.bytes) for part in (self.large, self.few))
        return accumulators // (DEPTH_LANES if self.mma else 1) + words
