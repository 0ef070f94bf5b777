"""The config of ``sm80_pipeline``, and the MMA, tiled copies and layouts that it determines.

The kernel writes a column-major C; for a row-major one it computes the transposed problem, with A
and B swapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cute_gemm.cute import choose
from cute_gemm.cute.atoms import MMA_ATOMS, universal
from cute_gemm.cute.copies import TiledCopy, TiledMma, gmem_tiled_copy, mma_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, tile_to_shape
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import Transposable, derived
from cute_gemm.kernels.options import spelled
from cute_gemm.problem.operation import Operation

#: Lanes of a warp along M and N, as the kernel sees them, for FMA.
FMA_LANES = (8, 4)


@dataclass(frozen=True, eq=False)
class OperandPlan:
    """The copies of A or B (as the kernel sees them) from global memory to the tensor cores."""

    source: str
    major: str
    gmem_copy: TiledCopy
    smem_atom: Layout
    smem_layout: Layout
    smem_copy: TiledCopy
    extents: tuple[int, int]
    stage: int  #: Elements from one tile in shared memory to the next.
    #: Copy of words to their place (``unaligned.cuh``), if rows may begin at any element.
    place: TiledCopy | None


class StagedAccumulators(NamedTuple):
    """The columns of C's tile that the epilogue stages at a time, in place of the k tiles."""

    tile: tuple[int, int]
    layout: Layout
    write: TiledCopy
    read: TiledCopy
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Sm80Config(Transposable, Config):
    """All that determines the code of an ``sm80_pipeline`` kernel.

    The fields up to ``min_ctas``, and ``mma``, are kernel options; the others follow from the
    problem.
    """

    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile.
    warps: tuple[int, int]  #: (m, n): warps along M and N.
    stages: int  #: k tiles in shared memory at a time.
    #: ``"auto"``: thread layouts, swizzles and ldmatrix kinds follow each operand's major.
    #: ``"mn_major"``: the thread layout (16,T/16):(1,16) with vectors along M or N and MN-major
    #: shared memory, whatever the operand's major.
    copy: str
    raster: int  #: Rows of tiles that share an L2 group.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    mma: str  #: Name of the MMA atom.
    operation: Operation
    #: Or ``"tensor_core"``: the same with one stage and no pipeline.
    kernel: str = "sm80_pipeline"

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile, including C's."""
        return symbol(
            self.kernel, self.operation.name, self.tile, f"w{spelled(self.warps)}",
            f"mma{spelled(MMA_ATOMS[self.mma].shape_mnk)}", f"s{self.stages}",
            self.operation.access_name, self.copy, f"r{self.raster}", f"o{self.min_ctas}",
        )  # fmt: skip

    @property
    def swap_ab(self) -> bool:
        """Whether C is row-major: the kernel then computes C^T with A and B swapped."""
        return self.operation.row_major

    @derived
    def tiled_mma(self) -> TiledMma:
        """The MMA atom over the config's warps."""
        atom = MMA_ATOMS[self.mma]
        wm, wn = self.turned(self.warps)
        if atom.threads == 32:
            m, n, k = atom.shape_mnk
            # Two atoms along N share one ldmatrix.x4 of B; DMMA operands are loaded one by one.
            n_atoms = 1 if self.operation.a.bytes > 4 else 2
            tile = (Layout(m * wm, 1), Layout(n * wn * n_atoms, 1), Layout(k, 1))
            return TiledMma(atom, Layout((wm, wn, 1), (1, wm, 0)), tile)
        # FMA: 8 x 4 lanes, so that a warp reads the fewest distinct words. Reads of an MN-major
        # operand have four rows, those of a K-major one four columns.
        lanes_m, lanes_n = FMA_LANES
        threads = Layout(((lanes_m, wm), (lanes_n, wn), 1), ((1, 32), (lanes_m, 32 * wm), 0))
        majors = self.smem_majors
        rows, columns = (
            Layout((extent, 4), (4, 1)) if major == "MN" else Layout(extent, 1)
            for extent, major in zip((lanes_m * wm, lanes_n * wn), majors, strict=True)
        )
        return TiledMma(atom, threads, (rows, columns, Layout(4 if "K" in majors else 1, 1)))

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.tiled_mma.size

    @property
    def smem_majors(self) -> tuple[str, str]:
        """The majors of the kernel's A and B in shared memory."""
        return ("MN", "MN") if self.copy == "mn_major" else self.product.majors[:2]

    def realigned(self, width: int) -> bool:
        """Return whether an operand with accesses of ``width`` bytes is copied by aligned words.

        cp.async copies 4 bytes or more; rows not aligned to words are put in place afterwards.
        """
        return width < 4 and self.copy != "mn_major"

    @property
    def realigns(self) -> bool:
        """Whether the rows of A or of B are put in place."""
        return any(map(self.realigned, self.operation.bytes[:2]))

    @property
    def ring(self) -> int:
        """K tiles in shared memory.

        A tile that is being put in place is neither in flight nor multiplied, so there is one more
        tile. The three tiles with bounds checks are loaded before the loop.
        """
        return max(self.stages + 1, 4) if self.stages > 1 and self.realigns else self.stages

    @derived
    def operands(self) -> tuple[OperandPlan, OperandPlan]:
        """The copies of the kernel's A and B to the tensor cores."""
        return self._operand(0), self._operand(1)

    def _operand(self, index: int) -> OperandPlan:
        product, mma, element = self.product, self.tiled_mma, self.operation.a.bytes
        extents, width = (self.kernel_tile[index], self.tile[2]), product.bytes[index]
        axis = int(self.smem_majors[index] == "K")
        fma = mma.atom.threads == 1
        reader = universal("ld.shared", 128) if fma else choose.reader(element, axis)
        place = None
        if self.realigned(width):
            place = choose.place_copy(element, extents, axis, mma.size)
            atom, layout, stage = choose.spaced_rows(element, extents, axis, self.ring)
        else:
            atom = choose.swizzled_atom(element, extents, axis, reader)
            if self.copy == "mn_major" and element == 2:
                atom = Layout((32, 8), (1, 32), Swizzle(3, 3, 4))  # the field reference's
            layout, stage = tile_to_shape(atom, (*extents, self.ring)), extents[0] * extents[1]
        return OperandPlan(
            source=self.turned(("A", "B"))[index], major=product.majors[index],
            gmem_copy=self._gmem_copy(product.majors[index], width, extents, mma.size),
            smem_atom=atom, smem_layout=layout,
            smem_copy=mma_tiled_copy(reader, 8 * element, mma, "AB"[index]), extents=extents,
            stage=stage, place=place,
        )  # fmt: skip

    def _gmem_copy(
        self, major: str, width: int, extents: tuple[int, int], threads: int
    ) -> TiledCopy:
        """Return the tiled copy from global to shared memory, in vectors of ``width`` bytes."""
        element = self.operation.a.bytes
        vector = (choose.VECTOR if self.realigned(width) else width) // element
        if self.copy != "mn_major":
            axis = int(major == "K")
            return choose.vector_copy("cp.async", element, extents, axis, vector, threads)
        rows = min(16 // element, extents[0] // 16)
        atom = choose.copy_atom(
            "cp.async", 8 * element * (min(vector, rows) if major == "MN" else 1)
        )
        return gmem_tiled_copy(
            atom, 8 * element, column_major(16, threads // 16), column_major(rows, 1)
        )

    @property
    def mainloop(self) -> int:
        """Bytes of the k tiles in shared memory."""
        return sum(plan.stage for plan in self.operands) * self.ring * self.operation.a.bytes

    @derived
    def staged(self) -> StagedAccumulators:
        """Staging of the accumulators in shared memory, with as many columns as fit."""
        mma, (rows, columns, _), mainloop = self.tiled_mma, self.kernel_tile, self.mainloop
        size, (_, _, width) = self.operation.accumulator.bytes, self.operation.bytes
        while columns > mma.extent(1) and _staged(mma, rows, columns, size)[1] > mainloop:
            columns //= 2
        layout, staged_bytes = _staged(mma, rows, columns, size)
        bits = 128 if mma.atom.threads == 1 and mma.tile[0].stride != 1 else 8 * size
        vector = min(16 // size, width // self.operation.c.bytes)
        return StagedAccumulators(
            (rows, columns),
            layout,
            mma_tiled_copy(universal("st.shared", bits), 8 * size, mma, "C"),
            choose.vector_copy("ld.shared", size, (rows, columns), 0, vector, mma.size),
            staged_bytes,
        )

    @property
    def smem(self) -> int:
        """Bytes of shared memory."""
        return max(self.mainloop, self.staged.bytes)


def _staged(mma: TiledMma, rows: int, columns: int, size: int) -> tuple[Layout, int]:
    """Return the layout in which ``columns`` of the accumulators are staged, and its bytes.

    Columns are padded by a vector. If FMA lanes store single rows, 8 side by side in each of 4
    columns, these columns must begin 8 or 24 banks apart: neighbouring columns or, if a thread has
    four together, every fourth.
    """
    if mma.atom.threads > 1 or mma.tile[0].stride != 1:
        pitch = rows + choose.VECTOR // size
        return Layout((rows, columns), (1, pitch)), columns * pitch * size
    together = mma.tile[1].extents[-1] if mma.tile[1].rank > 1 else 1
    banks = choose.ROW // size
    apart = rows * together
    apart += (FMA_LANES[0] - apart) % (banks // 2)
    shape, stride = (together, columns // together), (rows, apart)
    if together == 1:
        return Layout((rows, columns), (1, apart)), columns * apart * size
    return Layout((rows, shape), (1, stride)), columns // together * apart * size
