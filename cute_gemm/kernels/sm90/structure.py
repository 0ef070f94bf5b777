"""The config of ``sm90_wgmma``, and the shared memory layouts and TMA boxes that it determines.

The kernel sees A(M,K), B(N,K) and C(M,N) of either order. If a config swaps A and B, the kernel
computes the transposed problem: its N is the problem's M.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import ClassVar, NamedTuple

from cute_gemm.cute.layout import Layout
from cute_gemm.kernels.config import Config, symbol
from cute_gemm.kernels.derived import Transposable, derived
from cute_gemm.kernels.options import registers, spelled
from cute_gemm.kernels.tma import (
    BOX_ALIGNED,
    MOST_ROWS,
    epilogue_tile,
    operand_tile,
    shared_storage,
)
from cute_gemm.problem.operation import Operation
from cute_gemm.problem.parts.scales import BLOCK

#: Rows of a wgmma, threads of the warp group that issues it, and bytes of k.
ROWS, GROUP, DEEP = 64, 128, 32
#: Most columns of a wgmma.
MOST_COLUMNS = 256
#: Registers of a producer thread, of one whose warp group also loads block scales, and the most
#: that setmaxnreg sets.
LOADER_REGISTERS, SCALE_LOADER_REGISTERS, MOST_REGISTERS = 40, 56, 240
#: Further registers of a thread that double-buffered accumulators need, for products and scales,
#: and with rows of A.
_OTHERS, _OTHERS_WITH_ROWS = 32, 56
#: Words between scales of 128 x 128 blocks: more than a vector has, and free of bank conflicts.
_APART = 5


def _boxes(words: int) -> int:
    """Return ``words`` rounded up to where a box may begin."""
    return -(-4 * words // BOX_ALIGNED) * BOX_ALIGNED // 4


@dataclass(frozen=True, eq=False)
class OperandPlan:
    """The copy of A or B (as the kernel sees them) from global memory to the tensor cores.

    ``extents``: extents of the tile; ``layout``: layout of a stage, which may have rows after the
    tile's; ``box``: extents moved by one TMA instruction, in the modes of the matrix; ``span``:
    bytes of the swizzle; ``sharers``: CTAs that share a load.
    """

    source: str
    major: str
    extents: tuple[int, int]
    layout: Layout
    box: tuple[int, int]
    span: int
    sharers: int

    @property
    def pitch(self) -> int:
        """Rows from a tile to the next if a tile's last box has rows of the next, else 0."""
        rows, _ = self.extents
        return rows if self.layout.extents[0] > rows else 0


class EpilogueTile(NamedTuple):
    """A part of C in shared memory, (64, columns).

    ``layout``: as the kernel sees it; ``box`` and ``span``: TMA's, in the modes of the matrix;
    ``stores``: stores of a warp group, each of one such tile.
    """

    layout: Layout
    box: tuple[int, int]
    span: int
    stores: int
    smem: int  #: Bytes of shared memory of a CTA.


@dataclass(frozen=True, kw_only=True)
class Sm90Config(Transposable, Config):
    """All that determines the code of a kernel.

    The fields up to ``min_ctas`` are kernel options; the others follow from the problem.
    """

    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile.
    warp_groups: int  #: Warp groups that multiply.
    ping_pong: int  #: 0: they share each tile; 1: they take turns with whole tiles.
    stages: int  #: k tiles in shared memory at a time.
    cluster: tuple[int, int]  #: CTAs along M, which share B, and along N, which share A.
    raster: int  #: Rows of tiles that share an L2 group.
    swap_ab: int  #: 1: the kernel computes C^T with A and B swapped.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    tma_c: bool  #: C is stored by TMA.
    tma_scales: tuple[bool, bool]  #: Block scales of A and of B come by TMA; else lane by lane.
    operation: Operation
    kernel: ClassVar[str] = "sm90_wgmma"

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile."""
        return symbol(
            self.kernel, self.operation.name, self.tile,
            f"g{self.warp_groups}{'p' * bool(self.ping_pong)}", f"s{self.stages}",
            f"c{spelled(self.cluster)}", "x" * bool(self.swap_ab),
            "tma" if self.tma_c else "elements",
            *(f"scale_{x}_tma" for x in compress("ab", self.tma_scales)),
            f"r{self.raster}", f"o{self.min_ctas}",
        )  # fmt: skip

    @property
    def kernel_cluster(self) -> tuple[int, int]:
        """CTAs of a cluster along M and N, as the kernel sees them."""
        return self.turned(self.cluster)

    @property
    def zero_fills(self) -> bool:
        """Whether threads replace other groups' elements of a k tile by zeros."""
        return self.operation.groups == "K" and "K" in self.operation.majors[:2]

    @property
    def register_a(self) -> bool:
        """Whether A passes through registers: wgmma reads MN-major A only with 2-byte elements."""
        return self.product.majors[0] != "K" and self.operation.a.bytes != 2

    @property
    def column_major(self) -> bool:
        """Whether M is the unit-stride mode of the kernel's C."""
        return self.product.majors[2] == "M"

    # ---- a warp group's part of the tile -----------------------------------------------------

    @property
    def sharers_of_tile(self) -> int:
        """Warp groups that share one tile."""
        return 1 if self.ping_pong else self.warp_groups

    @property
    def side_by_side(self) -> bool:
        """Whether the warp groups divide the tile along N, not M."""
        bm, bn, _ = self.kernel_tile
        return not self.ping_pong and (bm % (ROWS * self.warp_groups) != 0 or bn > MOST_COLUMNS)

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows of the tile."""
        return self.kernel_tile[0] // ROWS

    @property
    def blocks_of_group(self) -> int:
        """Blocks of 64 rows of the tile that a warp group has."""
        return self.blocks // (1 if self.side_by_side else self.sharers_of_tile)

    @property
    def columns(self) -> int:
        """Columns of a warp group's part, and of its wgmmas."""
        return self.kernel_tile[1] // (self.warp_groups if self.side_by_side else 1)

    @property
    def columns_of_result(self) -> int:
        """Columns of the product for each column of C: 2 if the epilogue takes pairs."""
        return 2 if self.operation.epilogue.pairs else 1

    @property
    def results(self) -> int:
        """Columns of C of a warp group's part."""
        return self.columns // self.columns_of_result

    @property
    def tile_c(self) -> tuple[int, int]:
        """Extents of the tile of C."""
        bm, bn, _ = self.kernel_tile
        return bm, bn // self.columns * self.results

    # ---- registers ---------------------------------------------------------------------------

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return GROUP * (self.warp_groups + 1)

    @property
    def loader_registers(self) -> int:
        """Registers of a producer thread."""
        return SCALE_LOADER_REGISTERS if any(self.operation.scales) else LOADER_REGISTERS

    @property
    def registers(self) -> int:
        """Registers that setmaxnreg gives a consumer thread: those that the producers release."""
        entry = min(registers(self.threads, self.min_ctas) // 8 * 8, MOST_REGISTERS)
        left = entry * (self.warp_groups + 1) - self.loader_registers
        return min(MOST_REGISTERS, left // self.warp_groups // 8 * 8)

    @property
    def accumulators_per_thread(self) -> int:
        """Accumulators of a thread for a tile."""
        bm, bn, _ = self.tile
        return bm * bn // self.sharers_of_tile // GROUP

    @property
    def rows_of_thread(self) -> int:
        """Registers of a thread for A's rows: four steps of k, or two and twice those loaded."""
        return 4 * 4 * self.blocks_of_group * self.register_a

    @property
    def products_of_thread(self) -> int:
        """Further accumulators of a thread, for the products of a single k tile.

        They hold a block of 64 rows at a time or, with A from registers, all rows.
        """
        blocks = 1 if self.register_a else self.blocks_of_group
        return self.accumulators_per_thread // blocks if self.operation.promoted else 0

    @property
    def product_sets(self) -> int:
        """Buffers of accumulators for promoted products of a k tile: 2 or 1.

        A block of 64 rows has two if registers suffice: one is added while wgmma writes the other.
        There is one if threads write zeros into k tiles: ptxas would wait for each product.
        """
        if not self.operation.promoted or self.zero_fills or self.blocks_of_group > 1:
            return 1
        needs = (
            self.accumulators_per_thread + 2 * self.products_of_thread + sum(self.scales_of_thread)
        )
        needs += self.rows_of_thread
        needs += _OTHERS_WITH_ROWS if self.register_a else _OTHERS
        return 1 + (needs <= self.registers)

    @property
    def reads_ahead(self) -> bool:
        """Whether threads that load A load the first step of k once more after the last stage."""
        return self.register_a and self.operation.promoted and self.product_sets == 1

    # ---- block scales of A and of B as the kernel sees them --------------------------------------

    @property
    def scale_steps(self) -> tuple[int, int]:
        """Rows of a tile of A and of B that share a scale in a stage.

        They lie in one block of 128: a tile's rows begin at a multiple of 64, and a warp group's
        columns at a multiple of the largest power of two that divides their number.
        """
        (rows, columns), across = self.product.scales, self.columns
        step = min(across & -across, BLOCK) if columns == BLOCK else 1
        return ROWS if rows == BLOCK else 1, step

    @property
    def scales_of_stage(self) -> tuple[int, int]:
        """Block scales of A and of B in a stage."""
        bm, bn, _ = self.kernel_tile
        (rows, columns), (down, across) = self.product.scales, self.scale_steps
        return bm // down * (rows > 0), bn // across * (columns > 0)

    @property
    def scale_boxes(self) -> tuple[bool, bool]:
        """Whether TMA copies the block scales of A and of B."""
        return self.turned(self.tma_scales)

    @property
    def scale_copiers(self) -> int:
        """Lanes of a warp that copy the block scales which TMA does not copy."""
        copied = zip(self.scales_of_stage, self.scale_boxes, strict=True)
        return min(32, max(count * (not boxed) for count, boxed in copied))

    @property
    def scale_words(self) -> tuple[int, int]:
        """Words from a block scale to the next in a stage, of A and of B.

        Scales of 128 x 128 blocks have gaps: else ptxas would merge a thread's loads, differently
        for each tile.
        """
        rows, columns = self.product.scales
        return (_APART if rows == BLOCK else 1, _APART if columns == BLOCK else 1)

    @property
    def places_of_scales(self) -> tuple[int, int]:
        """The place of B's scales in a stage, after A's, and the end of the stage, in words."""
        (a, b), (down, across) = self.scales_of_stage, self.scale_words
        first = _boxes(a * down)
        return first, first + _boxes(b * across)

    @property
    def scales_of_thread(self) -> tuple[int, int]:
        """Block scales of a k tile that a thread holds, for its rows and for its columns."""
        (rows, columns), (_, step) = self.product.scales, self.scale_steps
        down = {0: 0, 1: 2}.get(rows, 1) * self.blocks_of_group
        return down, {0: 0, 1: self.columns // 4}.get(columns, self.columns // step)

    @property
    def adds_per_product(self) -> float:
        """Instructions that add a product of a k tile to an accumulator: an addition or an FMA.

        With block scales of A and of B, the scale of each row of a thread is multiplied by that of
        each of its columns once for all accumulators that share both.
        """
        down, across = self.scales_of_thread
        return 1.0 + down * across / self.accumulators_per_thread

    # ---- shared memory -----------------------------------------------------------------------

    @derived
    def operands(self) -> tuple[OperandPlan, OperandPlan]:
        """The copies of A and B to the tensor cores."""
        cluster_m, cluster_n = self.kernel_cluster
        # A box has columns of only one half of a tile of pairs.
        most = MOST_ROWS if self.columns_of_result == 1 else min(MOST_ROWS, self.results)
        return (
            self._operand(0, cluster_n, ROWS, MOST_ROWS),
            self._operand(1, cluster_m, self.results, most),
        )

    def _operand(self, index: int, sharers: int, block: int, most: int) -> OperandPlan:
        major, size = self.product.majors[index], self.operation.a.bytes
        extents = self.kernel_tile[index], self.tile[2]
        tile = operand_tile(extents, major == "K", size, sharers, block, most)
        return OperandPlan(self.turned(("A", "B"))[index], major, extents, *tile, sharers)

    @property
    def smem(self) -> int:
        """Bytes of shared memory of a CTA."""
        return self.epilogue_tile.smem

    @derived
    def epilogue_tile(self) -> EpilogueTile:
        """The part of C that a warp group stores at a time."""
        tile, storage = self._storage()
        return tile._replace(smem=shared_storage(self.stages, *storage))

    def most_stages(self, most: int, limit: int) -> int:
        """Return the stages that fit in ``limit`` bytes of shared memory: 2 to ``most``."""
        _, storage = self._storage()
        return next((n for n in range(most, 2, -1) if shared_storage(n, *storage) <= limit), 2)

    def _storage(self) -> tuple[EpilogueTile, tuple[int, ...]]:
        """Return the epilogue tile and the arguments of `shared_storage`."""
        out = self.operation.c.bytes
        layout, box, span = epilogue_tile(ROWS, self.results, self.column_major, out)
        columns = self.kernel_tile[1] // self.columns_of_result
        parts = self.blocks * columns // layout.extents[1] // self.sharers_of_tile
        stores = min(n for n in range(min(2, parts), parts + 1) if parts % n == 0)
        stores *= self.tma_c
        stage = sum(plan.layout.size for plan in self.operands) * self.operation.a.bytes
        places = self.warp_groups * max(stores, 1)
        scales = 4 * self.places_of_scales[1]
        tile = EpilogueTile(layout, self.turned(box), span, stores, 0)
        return tile, (stage, places * layout.size * out, places, scales)
