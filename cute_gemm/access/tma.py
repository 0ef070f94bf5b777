"""Cost of a kernel's bulk tensor copies (TMA), their legality, and their layout in shared memory.

One instruction moves a box of a matrix. The rows of the box along the mode of stride 1 are runs of
bytes in global memory, and are adjacent, swizzled, in shared memory. Elements outside the matrix
are not fetched and arrive as zeros. The sectors of the runs depend only on the residues of their
first addresses, whose numbers have a closed form, as in ``gmem``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cute_gemm.access import gmem
from cute_gemm.access.gmem import LINE, SECTOR, GlobalCounts, TileCosts
from cute_gemm.access.smem import MATRIX_ROW_BYTES, MATRIX_ROWS, phase_wavefronts, phase_words
from cute_gemm.cute.layout import Layout, Swizzle

if TYPE_CHECKING:
    from cute_gemm.access.accesses import TmaAccess

#: The address, the strides and a row of the box must be multiples of this many bytes.
ALIGNMENT = 16
#: Largest extent of a box.
MAX_EXTENT = 256
#: Spans of a swizzle in bytes; 0: no swizzle.
SPANS = (0, 32, 64, 128)
#: Lowest extent, and lowest stride in bytes, that a tensor map cannot hold.
EXTENT_LIMIT, STRIDE_LIMIT = 1 << 32, 1 << 40


@dataclass(frozen=True, slots=True)
class TmaAnalysis(TileCosts):
    """Cost of one ``TmaAccess``; tiles are boxes, ``requests`` in its counts instructions.

    ``launch``: requests to L2 of the launch; every box counts as often as it is moved, but once for
    all CTAs of a multicast; its ``requests`` include boxes outside the matrix. ``arriving``: the
    sectors of boxes that arrive, zeros included, in every CTA of a multicast.

    ``layout``: the box in shared memory, in elements (a swizzle wider than a row pads it).
    ``ways``: the most wavefronts for 8 rows of the box, 16 bytes each, which ldmatrix, stmatrix and
    wgmma read together; 1 without conflicts. ``findings``: one sentence for each thing that the
    hardware refuses or that is slow. ``legal``: whether the driver encodes such a tensor map.
    """

    arriving: int
    layout: Layout
    ways: int
    findings: tuple[str, ...]
    legal: bool

    #: A lane has no vector of its own; ``legal`` covers the rules of tensor maps.
    aligned: ClassVar[bool] = True

    @property
    def conflict_free(self) -> bool:
        """Whether 8 rows of 16 bytes take one wavefront, for every first row."""
        return self.ways == 1


def shared_layout(access: TmaAccess) -> Layout:
    """Return the layout of a box in shared memory, in elements, with the modes of the box.

    A swizzle with a span of ``s`` bytes is ``Swizzle<log2(s / 16), 4, 3>`` of byte addresses; rows
    shorter than the span are padded to it. Example: float16, box (128, 64) of a K-major matrix,
    swizzle 128: ``Sw<3,3,3> o 0 o (128,64):(64,1)``.
    """
    size = access.matrix.element.bytes
    unit = access.matrix.unit
    pitch = max(access.box[unit], access.swizzle // size)
    stride = (1, pitch) if unit == 0 else (pitch, 1)
    if not access.swizzle:
        return Layout(access.box, stride)
    bits = int(log2(access.swizzle // MATRIX_ROW_BYTES))
    return Layout(access.box, stride, Swizzle(bits, 4 - int(log2(size)), 3))


def read_ways(layout: Layout, unit: int, size: int) -> int:
    """Return the most wavefronts that 8 rows, 16 bytes each, take over all places in the tile.

    ``layout`` is in elements of ``size`` bytes, which are contiguous along mode ``unit`` apart from
    a swizzle. 8 for ``(128,64):(64,1)`` in 16-bit elements, 1 with ``Sw<3,3,3>`` on top.
    """
    rows, columns = layout.extents[1 - unit], layout.extents[unit]
    row = np.arange(rows // MATRIX_ROWS * MATRIX_ROWS or rows)[None, :]
    step = max(1, MATRIX_ROW_BYTES // size)
    column = np.arange(0, columns - columns % step, step)[:, None]
    offsets = layout(row, column) if unit else layout(column, row)
    if not offsets.size:
        return 1
    phases = offsets.reshape(-1, min(rows, MATRIX_ROWS)) * size
    requests = np.full((len(phases), 32), -1)
    requests[:, : phases.shape[1]] = phases
    wavefronts, _ = phase_wavefronts(phase_words("ldmatrix.x1", 128, requests))
    return int(wavefronts.max())


def _count(access: TmaAccess, base: int) -> tuple[GlobalCounts, GlobalCounts, GlobalCounts, int]:
    """Count the first box, full boxes and partial boxes of all matrices, each moved once.

    Also return the sectors of zeros that arrive with them: the part of a box's row after the
    matrix, from a multiple of 16 bytes on, and rows outside the matrix.
    """
    matrix = access.matrix
    size, unit = matrix.element.bytes, matrix.unit
    first = interior = edge = GlobalCounts()
    row, depth = access.box[unit] * size, access.box[1 - unit]
    zeros = access.boxes * depth * -(-row // SECTOR)  # with all rows outside

    def with_unit(pair: tuple[int, int], extent: int) -> tuple[int, int]:
        return (extent, pair[1]) if unit == 0 else (pair[0], extent)

    steps = with_unit(access.box, access.pitch or access.box[unit])
    for begin in access.first_boxes:
        region = with_unit(matrix.shape, max(0, matrix.shape[unit] - begin))
        tiles = gmem.tile_classes(matrix, region, access.box, base + begin * size, steps)
        for valid, boxes, full, _ in tiles:
            rows, length = valid[1 - unit], valid[unit] * size
            row_starts = gmem.residue_histogram(rows, matrix.stride[1 - unit] * size)
            counts = _boxes(boxes, row_starts, rows, length)
            filled = row - -(-length // MATRIX_ROW_BYTES) * MATRIX_ROW_BYTES
            zeros -= counts.tiles * rows * (-(-row // SECTOR) - -(-filled // SECTOR))
            if full:
                interior += counts
            else:
                edge += counts
            if begin == 0 and valid == tuple(map(min, access.box, matrix.shape)):
                first = _boxes(gmem.one_residue(base), row_starts, rows, length)
    return first, interior, edge, zeros


def _boxes(boxes: np.ndarray, row_starts: np.ndarray, rows: int, length: int) -> GlobalCounts:
    """Count boxes of ``rows`` runs of ``length`` bytes; ``boxes`` by residue of their corners."""
    runs = gmem.convolve(boxes, row_starts)
    number = sum(boxes.tolist())

    def touched(granule: int) -> int:
        residue = np.arange(LINE)
        blocks = (residue + length - 1) // granule - residue // granule + 1
        return gmem.total(runs, blocks)

    return GlobalCounts(
        tiles=number,
        requests=number,
        sectors=touched(SECTOR),
        l2_sectors=touched(SECTOR),
        ideal_sectors=number * -(-rows * length // SECTOR),
        lines=touched(LINE),
        bytes=number * rows * length,
    )


def _illegal(access: TmaAccess) -> list[str]:
    """Return a sentence for each thing that the driver would refuse."""
    matrix, box = access.matrix, access.box
    size, unit = matrix.element.bytes, matrix.unit
    row = box[unit] * size
    first = max(matrix.alignment, matrix.first_alignment)
    steps = [("batch stride", matrix.batch_stride)]
    if matrix.shape[1 - unit] > 1:  # for a single row the map may have any stride
        steps.insert(0, ("leading dimension", matrix.ld))
    strides = []
    for name, step in steps:
        pitch = step * size
        padded = -(-pitch // ALIGNMENT) * ALIGNMENT // size
        fix = f"pad it to {padded}" if pitch < STRIDE_LIMIT else "split the matrix"
        rule = f"a stride that is a multiple of {ALIGNMENT} bytes below 2**40, and the {name} "
        rule += f"{step} x {size} bytes is {pitch}; {fix}."
        strides.append((pitch % ALIGNMENT or pitch >= STRIDE_LIMIT, rule))
    rules = [
        (first < ALIGNMENT,
         f"a base address aligned to {ALIGNMENT} bytes, and this one is aligned "
         f"to {first}; copy the matrix to an aligned one."),
        *strides,
        (max(matrix.shape) > EXTENT_LIMIT,
         f"extents of at most 2**32, and the shape is {matrix.shape}."),
        (not all(1 <= extent <= MAX_EXTENT for extent in box),
         f"extents of a box between 1 and {MAX_EXTENT}, and the box is {box}; "
         "move it with several instructions."),
        (row % ALIGNMENT,
         f"rows of a box that are multiples of {ALIGNMENT} bytes, and those of {box} are {row}."),
        (access.swizzle and row > access.swizzle,
         f"rows of a box no longer than the span of the swizzle, {access.swizzle} bytes, and those "
         f"of {box} are {row}; split the box or take a wider swizzle."),
    ]  # fmt: skip
    findings = [f"{access.operand}: a tensor map requires {rule}" for wrong, rule in rules if wrong]
    if access.direction == "store" and access.multicast > 1:
        findings.append(
            f"{access.operand}: a store cannot be multicast, and multicast is {access.multicast}."
        )
    return findings


def _slow(access: TmaAccess, judged: GlobalCounts, layout: Layout, ways: int) -> list[str]:
    """Return a sentence for each thing that costs more than it must."""
    matrix = access.matrix
    size = matrix.element.bytes
    row = access.box[matrix.unit] * size
    findings = []
    if not judged.coalesced:
        run = min(row, matrix.shape[matrix.unit] * size)
        if run % SECTOR:
            cause = f"its rows of {run} bytes do not fill sectors"
        else:
            cause = (
                f"its rows do not begin on a {SECTOR}-byte boundary (base address aligned to "
                f"{matrix.alignment} bytes, leading dimension {matrix.ld} x {size} bytes)"
            )
        findings.append(
            f"{access.operand}: a box touches {judged.sectors / judged.tiles:,.1f} sectors where "
            f"{judged.ideal_sectors / judged.tiles:,.1f} would do: {cause}."
        )
    if row < access.swizzle:
        findings.append(
            f"{access.operand}: rows of {row} bytes are padded in shared memory to the swizzle's "
            f"span of {access.swizzle}; take a box of longer rows, or a swizzle of a shorter span."
        )
    if ways > 1:
        best, span, length = _best_box(access)
        findings.append(
            f"{access.operand}: 8 rows of the box in shared memory ({layout}), 16 bytes of each as "
            f"ldmatrix, stmatrix and wgmma take them, take {ways} wavefronts where 1 would do"
            + (f"; rows of {length} bytes, swizzle {span}, take {best}." if best < ways else ".")
        )
    return findings


def _best_box(access: TmaAccess) -> tuple[int, int, int]:
    """Return the fewest wavefronts, and the swizzle and row bytes, up to the box's, with them."""
    size, unit = access.matrix.element.bytes, access.matrix.unit
    tried = []
    for span in SPANS:
        row = min(access.box[unit] * size, span or ALIGNMENT)
        box = (row // size, access.box[1]) if unit == 0 else (access.box[0], row // size)
        layout = shared_layout(replace(access, box=box, swizzle=span))
        tried.append((read_ways(layout, unit, size), -row, span))
    ways, row, span = min(tried)
    return ways, span, -row


def analyze(access: TmaAccess, base: int | None = None) -> TmaAnalysis:
    """Count instructions, sectors, lines and bytes of one bulk tensor copy, and check it.

    ``sweeps`` counts the CTAs that each box is moved to (or from); with a ``multicast`` of ``c``
    that takes ``ceil(sweeps / c)`` instructions. ``base`` is as in ``gmem.analyze``, and the time
    taken does not depend on the extents of the matrix here either. ValueError for a box without
    elements, or a swizzle that does not exist. A float16 box of 64 x 128 elements whose rows are
    128 bytes on line boundaries touches 512 sectors and 128 lines.

    Every row of a box is fetched by itself: two rows that share a sector both fetch it. The limits
    are those of ``cuTensorMapEncodeTiled`` (CUDA Driver API, "Tensor Map Object Management").
    """
    if access.swizzle not in SPANS:
        raise ValueError(f"swizzle is {access.swizzle} bytes, expected one of {SPANS}")
    if min(access.box) < 1 or access.sweeps < 0 or access.multicast < 1:
        raise ValueError(
            f"box {access.box}, sweeps {access.sweeps}, multicast {access.multicast}: expected a "
            "box of at least 1 x 1, no negative sweeps and a multicast of at least 1"
        )
    base = (gmem.base_residue(access.matrix) if base is None else base) % LINE
    first, interior, edge, zeros = _count(access, base)
    size = access.matrix.element.bytes
    layout = shared_layout(access)
    ways = read_ways(layout, access.matrix.unit, size)
    illegal = _illegal(access)
    times, once = -(-access.sweeps // access.multicast), interior + edge
    return TmaAnalysis(
        tile=first,
        interior=interior,
        edge=edge,
        launch=replace(once.times(times), requests=access.boxes * times),
        arriving=(once.sectors + zeros) * access.sweeps,
        layout=layout,
        ways=ways,
        findings=tuple(illegal + _slow(access, interior if interior.tiles else edge, layout, ways)),
        legal=not illegal,
    )
