"""The config of an instance of CUTLASS's ``GemmUniversal``: tile, warps, stages, types, layouts.

CUTLASS writes row-major outputs. For a column-major C its emitter solves the transposed problem (it
swaps A and B and flips every layout), so it gets a row-major C transposed. An *instance* is the
problem that the emitted C++ type solves: with a column-major C its rows are n and its columns m,
with a row-major C its rows are m and its columns n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import Transposable
from cute_gemm.problem.operation import Operation

#: Threads of a warp.
WARP = 32
#: Smallest copy of cp.async, and the widest of any load, in bytes.
CP_ASYNC, WIDEST = 4, 16


class Tile(NamedTuple):
    """A CTA tile (bM, bN, bK), its warps along (M, N), and the default number of stages."""

    extents: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    #: Narrowest access of A and B in bytes for which it is selected: narrower accesses have more
    #: predicates than fit in the registers of a large tile.
    narrowest: int = 1


class Math(NamedTuple):
    """How CUTLASS computes one kind of product."""

    instruction: tuple[int, int, int]
    stages: tuple[int, int]  # fewest and most
    tiles: tuple[Tile, ...]  # the first is the default for many CTAs, the last that for few
    vector: bool = True  # whether a thread moves vectors, or single elements

    @property
    def opcode(self) -> Literal["TensorOp", "Simt"]:
        """The class of the instruction, as CUTLASS names it."""
        return "Simt" if self.instruction[0] == 1 else "TensorOp"


MATH = {
    "half": Math((16, 8, 16), (2, 12), (
        Tile((128, 128, 32), (2, 2), 4), Tile((256, 128, 32), (4, 2), 3),
        Tile((128, 256, 32), (2, 4), 3), Tile((128, 64, 32), (2, 2), 4),
        Tile((64, 128, 32), (2, 2), 4), Tile((64, 64, 32), (2, 2), 6),
    )),
    "tf32": Math((16, 8, 8), (3, 12), (
        Tile((128, 128, 32), (2, 2), 3, WIDEST), Tile((128, 128, 16), (2, 2), 4),
        Tile((64, 64, 32), (2, 2), 4),
    )),
    "float64": Math((8, 8, 4), (3, 8), (
        Tile((128, 128, 16), (4, 2), 3), Tile((64, 64, 16), (2, 2), 4),
    ), vector=False),
    "float32": Math((1, 1, 1), (3, 8), (
        Tile((128, 128, 8), (4, 2), 4), Tile((64, 64, 8), (2, 2), 5),
    ), vector=False),
    "int8": Math((16, 8, 32), (2, 12), (
        Tile((128, 128, 64), (2, 2), 4), Tile((64, 64, 64), (2, 2), 6),
    )),
    "dp4a": Math((1, 1, 4), (2, 2), (
        Tile((128, 128, 32), (4, 2), 2), Tile((64, 64, 32), (2, 2), 2),
    )),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CutlassUniversalConfig(Transposable, Config):
    """An instance of CUTLASS's kernel: options of ``gemm`` first, then fields set by the problem.

    ``tile``, (bM, bN, bK), determines ``warps`` along M and N. ``stages=2`` is the pipeline through
    registers (``ld.global``); more stages use ``cp.async``.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    #: Tiles of a band of the CTA swizzle: 1, 2, 4 or 8.
    swizzle: int
    #: Key of ``MATH``.
    math: str
    #: Base address, leading dimension and extent determine the width of accesses.
    operation: Operation

    @property
    def name(self) -> str:
        """The kernel's symbol: every type, layout, alignment and tile."""
        math = MATH[self.math]
        return symbol(
            "cutlass_universal", math.opcode.lower(), math.instruction, self.operation.name,
            self.operation.access_name, self.tile, self.warps, f"s{self.stages}",
            f"swz{self.swizzle}",
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * self.warps[0] * self.warps[1]

    @property
    def alignments(self) -> tuple[int, int, int]:
        """Elements of an access of A, B and C."""
        operation = self.operation
        a, b, c = operation.bytes
        return a // operation.a.bytes, b // operation.b.bytes, c // operation.c.bytes

    @property
    def is_simt(self) -> bool:
        """Whether the math is FMA or dp4a instead of tensor cores."""
        return MATH[self.math].opcode == "Simt"

    @property
    def swap_ab(self) -> bool:
        """Whether the instance is the transposed problem: C is column-major."""
        return not self.operation.row_major

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns of a warp's tile of the instance."""
        (m, n, _), (warps_m, warps_n) = self.kernel_tile, self.turned(self.warps)
        return m // warps_m, n // warps_n

    @property
    def simt_grid(self) -> tuple[int, int]:
        """Lanes of a SIMT warp along the instance's rows and columns."""
        warp_m, warp_n = self.warp_tile
        rows = 8 if self.math == "dp4a" and warp_m > warp_n else 4
        return rows, WARP // rows

    @property
    def smem(self) -> int:
        """Bytes of dynamic shared memory.

        At least the size of CUTLASS's ``SharedStorage``, which the unit asserts.
        """
        m, n, k = self.kernel_tile
        # SIMT kernels that transpose during the copy to shared memory pad rows by up to 4 elements.
        pad = 4 if self.is_simt else 0
        mainloop = (m + n + 2 * pad) * k * self.stages * self.operation.a.bytes
        # The epilogue stages 8 rows of each row of warps at a time, 16 for some tensor core types.
        rows = self.turned(self.warps)[0] * (8 if self.is_simt else 16)
        epilogue = rows * (n + 32) * self.operation.accumulator.bytes
        return -(-max(mainloop, epilogue) // 128) * 128
