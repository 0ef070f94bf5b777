"""The config of ``sm90_wgmma`` and what follows from it: layouts in shared memory, boxes of TMA.

The kernel sees A(M,K), B(N,K) and C(M,N) of either order. Where a config swaps A and B it
computes the transposed problem: what the problem calls M is the kernel's N.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import ClassVar

from cute_gemm.arch import Arch
from cute_gemm.cute.layout import Layout
from cute_gemm.kernels.config import Config
from cute_gemm.kernels.options import registers
from cute_gemm.kernels.tma import (
    MOST_ROWS,
    SPAN,
    TmaTile,
    epilogue_tile,
    operand_tile,
    shared_storage,
)
from cute_gemm.problem.operation import Operation
from cute_gemm.problem.parts.scales import BLOCK

#: Rows of a wgmma, threads of the warp group that starts it, and bytes of k.
ROWS, GROUP, DEEP = 64, 128, 32
#: Columns of a wgmma, at most.
MOST_COLUMNS = 256
#: Registers of a thread of the group that loads, also where a warp of it loads scales, and the most
#: that setmaxnreg gives.
LOADER_REGISTERS, SCALE_LOADER_REGISTERS, MOST_REGISTERS = 40, 56, 240
#: Registers of a thread that double-buffered accumulators need beside sums, products and scales,
#: and beside rows of A too.
_BESIDE_TWO_SETS, _BESIDE_TWO_SETS_AND_ROWS = 32, 56
#: Stages that are worth more than epilogue tiles of all columns, where block scales take room.
FEW_STAGES = 4
#: Words between scales of blocks of 128: more than a vector has, and free of bank conflicts.
_APART = 5
#: Shared memory of a CTA.
_SHARED = Arch("sm_90a").shared_limit


@dataclass(frozen=True, kw_only=True)
class Sm90Config(Config):
    """Everything that shapes the code of one kernel.

    The fields up to ``min_ctas`` may be set as kernel options; the others follow from the problem.
    """

    tile: tuple[int, int, int]  #: (bM, bN, bK): extents of the CTA tile.
    groups: int  #: Warp groups that multiply.
    ping_pong: int  #: 0: they share each tile; 1: they take whole tiles by turns.
    stages: int  #: k tiles in shared memory at a time.
    cluster: tuple[int, int]  #: CTAs along M, which share B, and along N, which share A.
    raster: int  #: Rows of tiles that share an L2 group.
    swap_ab: int  #: 1: the kernel computes C^T with A and B swapped.
    min_ctas: int  #: CTAs per multiprocessor that the register count must leave room for.
    tma_c: bool  #: C is stored by TMA.
    operation: Operation
    kernel: ClassVar[str] = "sm90_wgmma"

    @cached_property
    def name(self) -> str:
        """The kernel's symbol: every type, layout and tile."""
        parts = (
            self.kernel,
            self.operation.name,
            "x".join(map(str, self.tile)),
            f"g{self.groups}{'p' if self.ping_pong else ''}",
            f"s{self.stages}",
            f"c{self.cluster[0]}x{self.cluster[1]}",
            "x" if self.swap_ab else "",
            "tma" if self.tma_c else "elements",
            f"r{self.raster}",
            f"o{self.min_ctas}",
        )
        return "_".join(filter(None, parts))


@dataclass(frozen=True, eq=False)
class OperandPlan:
    """How A or B (as the kernel sees them) gets from global memory to the tensor cores.

    ``extents``: of the tile; ``layout``: of a stage, which may have rows behind the tile's own;
    ``box``: what one TMA instruction moves, in the modes of the matrix; ``span``: bytes of the
    swizzle; ``sharers``: CTAs that a load serves.
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
        """Rows from a tile to the next where a tile's last box has rows of the next, else 0."""
        rows, _ = self.extents
        return rows if self.layout.extents[0] > rows else 0


@dataclass(frozen=True, eq=False)
class Sm90Structure:
    """A config worked out, as the kernel sees it.

    ``column_major``: M is the unit-stride mode of the kernel's C; ``part``: of C in shared memory,
    (64, columns), of which ``stores`` for each group; ``box`` and ``span`` are TMA's.
    """

    tile: tuple[int, int, int]
    operands: tuple[OperandPlan, OperandPlan]
    column_major: bool
    part: Layout
    box: tuple[int, int]
    span: int
    stores: int
    columns: int  #: Of a group's part, and of its wgmmas.
    results: int  #: Columns of C of a group's part: half of them with an epilogue of pairs.
    threads: int
    registers: int  #: Of a thread that multiplies.
    smem: int

    @property
    def side_by_side(self) -> bool:
        """Whether the groups' parts of the tile lie beside each other, not below."""
        return self.columns < self.tile[1]

    @property
    def blocks(self) -> int:
        """Blocks of 64 rows of the tile."""
        return self.tile[0] // ROWS

    @property
    def tile_c(self) -> tuple[int, int]:
        """Extents of the tile of C."""
        return self.tile[0], self.tile[1] // self.columns * self.results


def kernel_tile(config: Sm90Config) -> tuple[int, int, int]:
    """Extents of the CTA tile as the kernel sees it."""
    bm, bn, bk = config.tile
    return (bn, bm, bk) if config.swap_ab else (bm, bn, bk)


def kernel_cluster(config: Sm90Config) -> tuple[int, int]:
    """CTAs of a cluster as the kernel sees them, below each other and beside."""
    along_m, along_n = config.cluster
    return (along_n, along_m) if config.swap_ab else (along_m, along_n)


def zero_fills(config: Sm90Config) -> bool:
    """Whether threads put zeros in the place of other groups' elements of a k tile."""
    return config.operation.groups == "K" and "K" in config.operation.majors[:2]


def ragged(config: Sm90Config) -> str:
    """The mode along which groups lie as the kernel sees it, "" but in a grouped GEMM."""
    mode = config.operation.groups
    return {"M": "N", "N": "M"}.get(mode, mode) if config.swap_ab else mode


def columns_of_result(config: Sm90Config) -> int:
    """Columns of the product that make one of C: 2 where the epilogue takes pairs of them."""
    return 2 if config.operation.epilogue.pairs else 1


def register_a(config: Sm90Config) -> bool:
    """Whether A passes through registers: along M wgmma reads elements of 2 bytes alone."""
    major = config.operation.majors[bool(config.swap_ab)]
    return major != "K" and config.operation.a.bytes != 2


def products_of_thread(config: Sm90Config) -> int:
    """Accumulators of a thread beside its sums: where products of a k tile go to their own.

    Of a block of 64 rows at a time or, with A from registers, of all.
    """
    if not config.operation.promoted:
        return 0
    blocks = blocks_of_group(config)
    return sums_of_thread(config) // (1 if register_a(config) else blocks)


def product_sets(config: Sm90Config) -> int:
    """Buffers of accumulators for the products of a k tile that are promoted: 2 or 1.

    Two for a block of 64 rows, where registers suffice: one is added while wgmma writes the other.
    ptxas would wait for each product where threads put zeros into k tiles between them.
    """
    if not config.operation.promoted or zero_fills(config) or blocks_of_group(config) > 1:
        return 1
    needs = sums_of_thread(config) + 2 * products_of_thread(config) + sum(scales_of_thread(config))
    needs += rows_of_thread(config)
    needs += _BESIDE_TWO_SETS_AND_ROWS if register_a(config) else _BESIDE_TWO_SETS
    return 1 + (needs <= _registers(config))


def reads_ahead(config: Sm90Config) -> bool:
    """Whether threads that load A load the first step of k once more behind a tile's last stage."""
    return register_a(config) and config.operation.promoted and product_sets(config) == 1


def scale_rows(config: Sm90Config) -> tuple[int, int]:
    """Rows that share a scale of 128 of k, of A and B as the kernel sees them; 0: no scales."""
    a, b = config.operation.scales
    return (b, a) if config.swap_ab else (a, b)


def scale_steps(config: Sm90Config) -> tuple[int, int]:
    """Rows of a tile of A and of B that share a scale in a stage.

    Of blocks of 128 these are not of two: a tile's rows begin at a multiple of 64, and a group's
    columns at one of the largest power of two in their number.
    """
    rows, columns = scale_rows(config)
    across = columns_of_group(config)
    return (ROWS if rows == BLOCK else 1, min(across & -across, BLOCK) if columns == BLOCK else 1)


def scales_of_stage(config: Sm90Config) -> tuple[int, int]:
    """Scales of A and of B in a stage."""
    bm, bn, _ = kernel_tile(config)
    (rows, columns), (down, across) = scale_rows(config), scale_steps(config)
    return bm // down * (rows > 0), bn // across * (columns > 0)


def scale_words(config: Sm90Config) -> tuple[int, int]:
    """Words from a scale to the next in a stage, of A and of B.

    Those of blocks lie apart: else ptxas would merge a thread's loads, differently for each tile.
    """
    rows, columns = scale_rows(config)
    return (_APART if rows == BLOCK else 1, _APART if columns == BLOCK else 1)


def places_of_scales(config: Sm90Config) -> tuple[int, int]:
    """The place of B's scales in a stage, behind A's, and where the stage ends, in words."""
    (a, b), (down, across) = scales_of_stage(config), scale_words(config)
    first = -(-a * down // 4) * 4  # vectors of two are aligned
    return first, first + -(-b * across // 4) * 4


def scales_of_thread(config: Sm90Config) -> tuple[int, int]:
    """Scales of a k tile that a thread holds, of its rows and of its columns."""
    (rows, columns), (_, step) = scale_rows(config), scale_steps(config)
    down = {0: 0, 1: 2}.get(rows, 1) * blocks_of_group(config)
    across = {0: 0, 1: columns_of_group(config) // 4}.get(columns, columns_of_group(config) // step)
    return down, across


def columns_of_group(config: Sm90Config) -> int:
    """Columns of a group's part of the tile."""
    return sums_of_thread(config) * GROUP // ROWS // blocks_of_group(config)


def adds_of_sum(config: Sm90Config) -> float:
    """Instructions that add the products of a k tile to a sum: an addition, or a fused one.

    Where there are scales of A and of B, those of each of a thread's rows are multiplied by those
    of its columns once for all sums that have both.
    """
    down, across = scales_of_thread(config)
    return 1.0 + down * across / sums_of_thread(config)


def blocks_of_group(config: Sm90Config) -> int:
    """Blocks of 64 rows of the tile that a group has."""
    bm, _, _ = kernel_tile(config)
    return bm // ROWS // (1 if side_by_side(config) else sharers_of_tile(config))


def rows_of_thread(config: Sm90Config) -> int:
    """Registers of a thread for A's rows: of four steps of k, or two and twice what is loaded."""
    return 4 * 4 * blocks_of_group(config) * register_a(config)


def sharers_of_tile(config: Sm90Config) -> int:
    """Groups that have parts of one tile."""
    return 1 if config.ping_pong else config.groups


def sums_of_thread(config: Sm90Config) -> int:
    """Results of a tile that a thread sums up."""
    bm, bn, _ = config.tile
    return bm * bn // sharers_of_tile(config) // GROUP


def side_by_side(config: Sm90Config) -> bool:
    """Whether the groups' parts of the tile lie beside each other, not below."""
    bm, bn, _ = kernel_tile(config)
    return not config.ping_pong and (bm % (ROWS * config.groups) != 0 or bn > MOST_COLUMNS)


def _operands(config: Sm90Config) -> tuple[OperandPlan, OperandPlan]:
    bm, bn, bk = kernel_tile(config)
    below_each_other, beside_each_other = kernel_cluster(config)
    width = _results(config)
    # A box has columns of one half of a tile of pairs.
    most = MOST_ROWS if columns_of_result(config) == 1 else min(MOST_ROWS, width)

    def operand(
        source: str, extents: tuple[int, int], sharers: int, block: int, most: int = MOST_ROWS
    ) -> OperandPlan:
        major = config.operation.majors["AB".index(source)]
        tile = operand_tile(extents, major == "K", config.operation.a.bytes, sharers, block, most)
        return OperandPlan(source, major, extents, *tile, sharers)

    a, b = "BA" if config.swap_ab else "AB"
    return (
        operand(a, (bm, bk), beside_each_other, ROWS),
        operand(b, (bn, bk), below_each_other, width, most),
    )


def loader_registers(config: Sm90Config) -> int:
    """Registers of a thread of the group that loads."""
    return SCALE_LOADER_REGISTERS if any(config.operation.scales) else LOADER_REGISTERS


def _registers(config: Sm90Config) -> int:
    """What setmaxnreg gives a thread that multiplies: what the group that loads does not keep."""
    groups = config.groups + 1
    entry = min(registers(GROUP * groups, config.min_ctas) // 8 * 8, MOST_REGISTERS)
    return min(
        MOST_REGISTERS, (entry * groups - loader_registers(config)) // config.groups // 8 * 8
    )


def _results(config: Sm90Config) -> int:
    """Columns of C of a group's part of the tile."""
    _, bn, _ = kernel_tile(config)
    columns = bn // config.groups if side_by_side(config) else bn
    return columns // columns_of_result(config)


def _column_major(config: Sm90Config) -> bool:
    """Whether M is the unit-stride mode of the kernel's C."""
    return config.operation.row_major == bool(config.swap_ab)


def _storage(config: Sm90Config, width: int) -> tuple[TmaTile, int, int]:
    """An epilogue tile whose columns divide ``width``, how many a group has, and shared memory."""
    bm, bn, _ = kernel_tile(config)
    out = config.operation.c.bytes
    tile = epilogue_tile(ROWS, width, _column_major(config), out)
    columns = bn // columns_of_result(config)
    parts = bm // ROWS * columns // tile.layout.extents[1] // sharers_of_tile(config)
    stores = min(n for n in range(min(2, parts), parts + 1) if parts % n == 0)
    stores *= config.tma_c
    stage = sum(plan.layout.size for plan in _operands(config)) * config.operation.a.bytes
    places = config.groups * max(stores, 1)
    scales = 4 * places_of_scales(config)[1]
    epilogue = places * tile.layout.size * out
    return tile, stores, shared_storage(config.stages, stage, epilogue, places, scales)


def _fitting_storage(config: Sm90Config) -> tuple[TmaTile, int, int]:
    """The same with an epilogue tile of all columns or, where those leave few stages, narrow."""
    width = _results(config)
    found = _storage(config, width)
    if config.stages <= FEW_STAGES and any(config.operation.scales) and found[2] > _SHARED:
        found = _storage(config, gcd(width, SPAN // config.operation.c.bytes // 2))
    return found


def shared_memory(config: Sm90Config) -> int:
    """Bytes of shared memory of a CTA."""
    return _fitting_storage(config)[2]


@lru_cache(maxsize=4096)
def structure(config: Sm90Config) -> Sm90Structure:
    """Work a config out."""
    width = _results(config)
    epilogue, stores, smem = _fitting_storage(config)
    return Sm90Structure(
        tile=kernel_tile(config),
        operands=_operands(config),
        column_major=_column_major(config),
        part=epilogue.layout,
        box=epilogue.box if not config.swap_ab else epilogue.box[::-1],
        span=epilogue.span,
        stores=stores,
        columns=width * columns_of_result(config),
        results=width,
        threads=GROUP * (config.groups + 1),
        registers=_registers(config),
        smem=smem,
    )
