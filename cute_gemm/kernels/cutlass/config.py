"""What one instance of CUTLASS's ``GemmUniversal`` is: tile, warps, stages, types, layouts.

CUTLASS writes row-major outputs. Its emitter serves a column-major C by the transposed problem (it
exchanges A and B and flips every layout), so a row-major C is handed to it transposed. What is
called *instance* here is the problem that the emitted C++ type solves: with a column-major C its
rows are n and its columns m, with a row-major C its rows are m and its columns n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from cute_gemm.problem.dtypes import DType, dtype
from cute_gemm.problem.problem import GemmProblem

#: Threads of a warp.
WARP = 32
#: Smallest copy of cp.async, and the widest of any load, in bytes.
CP_ASYNC, WIDEST = 4, 16


class Tile(NamedTuple):
    """A CTA tile (bM, bN, bK), its warps along (M, N), and the stages that it has by default."""

    extents: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    #: Least bytes of an access of A and B for which it is chosen: narrow accesses are many, and so
    #: are their predicates, for which the registers of a large tile do not suffice.
    narrowest: int = 1


class Math(NamedTuple):
    """How CUTLASS computes one kind of product."""

    opcode: Literal["TensorOp", "Simt"]
    instruction: tuple[int, int, int]
    tiles: tuple[Tile, ...]  # the first is the default for many CTAs, the last for few
    stages: tuple[int, int]  # fewest and most
    vector: bool = True  # whether a thread moves vectors, or single elements


MATH: dict[str, Math] = {
    "half": Math(
        "TensorOp",
        (16, 8, 16),
        (
            Tile((128, 128, 32), (2, 2), 4),
            Tile((256, 128, 32), (4, 2), 3),
            Tile((128, 256, 32), (2, 4), 3),
            Tile((128, 64, 32), (2, 2), 4),
            Tile((64, 128, 32), (2, 2), 4),
            Tile((64, 64, 32), (2, 2), 6),
        ),
        (2, 12),
    ),
    "tf32": Math(
        "TensorOp",
        (16, 8, 8),
        (
            Tile((128, 128, 32), (2, 2), 3, WIDEST),
            Tile((128, 128, 16), (2, 2), 4),
            Tile((64, 64, 32), (2, 2), 4),
        ),
        (3, 12),
    ),
    "float64": Math(
        "TensorOp",
        (8, 8, 4),
        (Tile((128, 128, 16), (4, 2), 3), Tile((64, 64, 16), (2, 2), 4)),
        (3, 8),
        vector=False,
    ),
    "float32": Math(
        "Simt",
        (1, 1, 1),
        (Tile((128, 128, 8), (4, 2), 4), Tile((64, 64, 8), (2, 2), 5)),
        (3, 8),
        vector=False,
    ),
    "int8": Math(
        "TensorOp",
        (16, 8, 32),
        (Tile((128, 128, 64), (2, 2), 4), Tile((64, 64, 64), (2, 2), 6)),
        (2, 12),
    ),
    "dp4a": Math(
        "Simt",
        (1, 1, 4),
        (Tile((128, 128, 32), (4, 2), 2), Tile((64, 64, 32), (2, 2), 2)),
        (2, 2),
    ),
}


class Side(NamedTuple):
    """A or B of a config."""

    extent: int  # of the tile along M or N
    alignment: int  # elements of an access


@dataclass(frozen=True, slots=True)
class CutlassUniversalConfig:
    """One instance of CUTLASS's kernel: options of ``gemm`` first, then what the problem says.

    ``tile`` is (bM, bN, bK), which says what ``warps`` are along M and N; ``stages=2`` is the
    pipeline through registers (``ld.global``), more the one of ``cp.async``.
    """

    tile: tuple[int, int, int]
    warps: tuple[int, int]
    stages: int
    #: Tiles of a band of the CTA swizzle: 1, 2, 4 or 8.
    swizzle: int
    #: Key of ``MATH``.
    math: str
    #: Of A and B, and of C.
    dtype: str
    out_dtype: str
    #: The contiguous mode: ``"M"``, ``"N"`` or ``"K"``.
    major_a: str
    major_b: str
    major_c: str
    #: Elements of each access: what base address, leading dimension and extent allow.
    align_a: int
    align_b: int
    align_c: int

    @property
    def name(self) -> str:
        """The kernel's symbol: every type, layout, alignment and tile, C's too.

        ``cutlass_universal_sm80_tensorop_16x8x16_f16xf16_f16_f32_AK8_BK8_CM8_128x128x32_2x2_4_swz8``
        """
        tag = self.element.tag
        return "_".join(
            (
                "cutlass_universal_sm80",
                MATH[self.math].opcode.lower(),
                "x".join(map(str, MATH[self.math].instruction)),
                f"{tag}x{tag}",
                dtype(self.out_dtype).tag,
                self.sums.tag,
                f"A{self.major_a}{self.align_a}",
                f"B{self.major_b}{self.align_b}",
                f"C{self.major_c}{self.align_c}",
                "x".join(map(str, self.tile)),
                "x".join(map(str, self.warps)),
                str(self.stages),
                f"swz{self.swizzle}",
            )
        )

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARP * self.warps[0] * self.warps[1]

    @property
    def element(self) -> DType:
        """Type of A and B."""
        return dtype(self.dtype)

    @property
    def sums(self) -> DType:
        """Type of the sums, in registers and on their way through shared memory."""
        return dtype(self.element.accumulator)

    @property
    def is_simt(self) -> bool:
        """Whether the math is FMA or dp4a instead of tensor cores."""
        return MATH[self.math].opcode == "Simt"

    @property
    def swap_ab(self) -> bool:
        """Whether the instance is the transposed problem: C is column-major."""
        return self.major_c == "M"

    @property
    def instance_tile(self) -> tuple[int, int, int]:
        """The tile in the instance's modes."""
        m, n, k = self.tile
        return (n, m, k) if self.swap_ab else (m, n, k)

    @property
    def instance_warps(self) -> tuple[int, int]:
        """The warps in the instance's modes."""
        m, n = self.warps
        return (n, m) if self.swap_ab else (m, n)

    @property
    def warp_tile(self) -> tuple[int, int]:
        """Rows and columns of a warp's tile of the instance."""
        (m, n, _), (warps_m, warps_n) = self.instance_tile, self.instance_warps
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
        m, n, k = self.instance_tile
        # SIMT kernels that transpose on the way to shared memory pad each row by up to 4 elements.
        pad = 4 if self.is_simt else 0
        mainloop = (m + n + 2 * pad) * k * self.stages * self.element.bytes
        # The epilogue passes 8 rows of each row of warps at a time, 16 for some tensor core types.
        rows = self.instance_warps[0] * (8 if self.is_simt else 16)
        epilogue = rows * (n + 32) * self.sums.bytes
        return -(-max(mainloop, epilogue) // 128) * 128

    def side(self, operand: str) -> Side:
        """What is said of ``"A"`` or ``"B"``."""
        if operand == "A":
            return Side(self.tile[0], self.align_a)
        return Side(self.tile[1], self.align_b)


def ctas(problem: GemmProblem, tile: tuple[int, int, int]) -> int:
    """CTAs of a launch: one for each tile of C."""
    return -(-problem.m // tile[0]) * -(-problem.n // tile[1])
