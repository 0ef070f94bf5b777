"""The Python side of ``templates/tma/``: tiles that TMA moves, tensor maps, shared storage."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, log2
from typing import TYPE_CHECKING, NamedTuple

from cute_gemm.access.smem import MATRIX_ROW_BYTES
from cute_gemm.cute.layout import Layout, Swizzle
from cute_gemm.toolchain.signature import Signature, gemm_signature

if TYPE_CHECKING:
    from cute_gemm.problem.operation import Operation

#: Bytes of the widest swizzle's span; alignment in bytes of stages, and of boxes without swizzle.
SPAN, ALIGNED, BOX_ALIGNED = 128, 1024, 128
#: Most rows of a box.
MOST_ROWS = 256
#: Bytes of a barrier.
BARRIER = 8


class TmaTile(NamedTuple):
    """A tile in shared memory as TMA writes or reads it.

    ``layout``: coordinate -> element of a stage; ``box``: extents moved by one instruction;
    ``span``: bytes of the swizzle.
    """

    layout: Layout
    box: tuple[int, int]
    span: int


def swizzle(span: int, size: int) -> Swizzle:
    """Return TMA's swizzle of a span of ``span`` bytes, for elements of ``size`` bytes."""
    return Swizzle(int(log2(span // MATRIX_ROW_BYTES)), 4 - int(log2(size)), 3)


@lru_cache(maxsize=4096)
def operand_tile(
    extents: tuple[int, int], k_major: bool, size: int, sharers: int, block: int,
    most: int = MOST_ROWS,
) -> TmaTile:  # fmt: skip
    """Return the tile (bMN, bK) of A or B, with elements of ``size`` bytes.

    ``sharers``: CTAs of a cluster that each load a part of it; ``block``: rows of an MN-major
    operand that a swizzle span must not cross; ``most``: rows of a box of a K-major operand.

    A row of an MN-major operand's box is a line if that adds no more than a sixth, else half a
    line: the last box also has rows of the next tile, for which the layout has room after the
    tile's rows. On an H200 kernels took up to 1.4 times as long with boxes of 32 bytes, and longer
    with lines that add a fifth than with half lines.
    """
    rows, columns = extents
    span, stored = gcd(SPAN, (columns if k_major else block) * size), rows
    if not k_major and block == rows and span < min(SPAN, rows * size):
        lines, halves = (-(-rows * size // wide) * wide // size for wide in (SPAN, SPAN // 2))
        stored = lines if 6 * lines <= 7 * rows else halves
        span = gcd(SPAN, stored * size)
    run = span // size
    if k_major:
        layout = Layout((rows, (run, columns // run)), (run, (1, rows * run)), swizzle(span, size))
        share = rows // sharers
        return TmaTile(layout, (share // -(-share // most), run), span)
    return TmaTile(_mn_major(stored, columns, span, size), (run, columns // sharers), span)


def _mn_major(rows: int, columns: int, span: int, size: int) -> Layout:
    """Return the layout of boxes side by side, each a span of rows wide and all columns long."""
    run = span // size
    stride = (1, run * columns), run
    return Layout(((run, rows // run), columns), stride, swizzle(span, size))


@lru_cache(maxsize=1024)
def epilogue_tile(rows: int, width: int, column_major: bool, size: int) -> TmaTile:
    """Return C's epilogue tile, whose columns divide ``width``, with ``size``-byte elements."""
    columns = gcd(width, SPAN // size)
    span = min(SPAN, rows * size) if column_major else columns * size
    if not column_major:
        layout = Layout((rows, columns), (columns, 1), swizzle(span, size))
        return TmaTile(layout, (rows, columns), span)
    return TmaTile(_mn_major(rows, columns, span, size), (span // size, columns), span)


def shared_storage(
    stages: int, stage: int, epilogue: int, epilogue_stages: int, scales: int = 0
) -> int:
    """Return the size of ``SharedStorage`` in bytes.

    ``stage``: bytes of A and B in a pipeline stage; ``epilogue``: bytes of all ``epilogue_stages``;
    ``scales``: bytes of block scales in a pipeline stage, a multiple of `BOX_ALIGNED`.
    """
    barriers = BARRIER * (2 * stages + epilogue_stages)
    barriers += -barriers % BOX_ALIGNED * (scales > 0)
    return aligned(stages * stage + aligned(epilogue) + barriers + stages * scales)


def aligned(size: int) -> int:
    """Return ``size`` rounded up to where the next stage may begin."""
    return -(-size // ALIGNED) * ALIGNED


def tma_signature(operation: Operation) -> Signature:
    """Return the parameters of a GEMM, and the tensor maps of A, B, C and block scales."""
    maps = "map_a", "map_b", "map_c", *(f"map_{name}" for name in operation.block_scales)
    return gemm_signature(operation, *maps)
