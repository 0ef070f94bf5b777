"""The packing kernel that copies operands into aligned scratch, transposed or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cute_gemm.access.accesses import Access, GlobalAccess, SharedAccess
from cute_gemm.kernels.auxiliary.packer import THREADS, PackConfig, Packer
from cute_gemm.kernels.staging import along_unit, load_of_rows
from cute_gemm.toolchain.unit import cpp_bool

if TYPE_CHECKING:
    from cute_gemm.problem.matrix import Matrix

#: Bytes of a tile; bytes of a vector; vectors of a line, one for each of neighbouring lanes.
TILE_BYTES, VECTOR, LINE = 16384, 16, 8
#: Lines of a tile, and vectors of a thread.
LINES, VECTORS = TILE_BYTES // (VECTOR * LINE), 4
#: Most rows of transposed tiles that are traversed together.
GROUP = 32
#: Fewest CTAs of a launch that starts early: fewer would crowd onto idle multiprocessors.
FEW = 256
#: log2 of the lines of a transposed tile's row, by bytes of an element, best first.
TURNED_LINES = {1: (0,), 2: (0, 1), 4: (1,), 8: (2,), 16: (2,)}


class Copy(NamedTuple):
    """How one operand is copied: the template's parameters."""

    bytes: int = 0  #: Bytes of an element; 0: nothing is copied.
    words: int = 1  #: 16-byte words that make a vector: 1 if all rows are aligned.
    transposed: bool = False  #: Whether the target's unit stride is the other mode's.
    lines: int = 0  #: log2 of the lines of a row of a transposed tile.

    def __str__(self) -> str:
        if not self.bytes:
            return "none"
        form = f"transposed{self.lines}" if self.transposed else "same"
        return f"{form}_b{8 * self.bytes}{'_shifted' * (self.words > 1)}"

    @property
    def cpp(self) -> str:
        """The C++ type."""
        order = f"{cpp_bool(self.transposed)}, {self.lines}"
        return f"cute_gemm::Pack<{self.bytes}, {self.words}, {order}>"

    @property
    def group(self) -> int:
        """Rows whose elements make a 4-byte word of the target."""
        return max(4 // self.bytes, 1) if self.transposed else 1


class PackTiling(NamedTuple):
    """Tiling of an operand: the fields of `PackOperand` except strides."""

    extent: int  #: Elements of a row, which has unit stride in the source.
    rows: int
    matrices: int
    tiles: int  #: Tiles of one matrix, including those missing from the last group.
    lines: int  #: log2 of the lines of a tile's row.
    group: int  #: Rows of tiles that are traversed together.
    along: int  #: Tiles along a row.


def _tiles(source: Matrix, lines: int) -> tuple[int, int]:
    """Return the number of tiles along a row, and of rows of tiles."""
    row = source.shape[source.unit] * source.element.bytes
    along = -(-row // (VECTOR * LINE << lines))
    return along, -(-source.shape[1 - source.unit] // (LINES >> lines))


def _reciprocal(divisor: int) -> tuple[int, int]:
    """Return the multiplier and shift of a division, as the template's ``Divisor``."""
    shift = 31 + (divisor - 1).bit_length()
    return -(-(1 << shift) // divisor), shift


class Pack(Packer):
    """The kernel that packs A, B or both: a CTA copies a tile of one of them."""

    name = "pack"
    about = "Packing into scratch: A {A}, B {B}"
    form = Copy
    operand = "PackOperand", "=5q4I7i4x"
    few = FEW

    def copy(self, source: Matrix, target: Matrix) -> Copy:
        size, rows = source.element.bytes, source.shape[1 - source.unit]
        pitch = source.ld * size if rows > 1 else 0
        words = 2 if source.alignment % VECTOR or pitch % VECTOR else 1
        if source.unit == target.unit:
            return Copy(size, words)
        lines = min(TURNED_LINES[size], key=lambda x: prod(_tiles(source, x)))
        return Copy(size, words, True, lines)

    def place(self, source: Matrix, target: Matrix) -> PackTiling:
        """Return the tiling of an operand.

        For operands that are not transposed, take the tile shape that reads the fewest sectors if
        rows of tiles do not begin at a sector.
        """
        copy, unit = self.copy(source, target), source.unit
        extent, rows = source.shape[unit], source.shape[1 - unit]
        lines = copy.lines
        if not copy.transposed:
            lines = min(reversed(range(6)), key=lambda x: _tiles(source, x)[0] * ((4 << x) + 1))
        along, tile_rows = _tiles(source, lines)
        groups = -(-tile_rows // GROUP) if copy.transposed else tile_rows
        group = -(-tile_rows // groups)
        matrices = 1 if target.batch_stride == 0 else source.l
        return PackTiling(extent, rows, matrices, along * group * groups, lines, group, along)

    def numbers(self, source: Matrix, target: Matrix, offset: int) -> tuple[int, ...]:
        place = self.place(source, target)
        return offset, *_reciprocal(place.group), *_reciprocal(place.along), *place

    def smem(self, config: PackConfig) -> int:
        return TILE_BYTES if config.A.transposed or config.B.transposed else 0

    def copied(self, copy: Copy, source: Matrix, target: Matrix) -> Iterator[Access]:
        """Yield the accesses of the copy of one operand."""
        place, width = self.place(source, target), VECTOR // copy.bytes
        if place.matrices == 1:  # the batch shares one matrix, or there is no batch
            source, target = (replace(matrix, l=1, batch_stride=0) for matrix in (source, target))
        row, column = _tile(copy, place.lines)
        extents = ((LINE << place.lines) * width, LINES >> place.lines)
        coords = along_unit(source, column * width, row)
        load = load_of_rows(source.name, 128, source, extents, coords, tail="whole")
        yield from _loads(load, copy)
        if copy.transposed:
            lane, block = np.arange(32), np.arange(TILE_BYTES // VECTOR // 32)[:, None]
            chunks = extents[1] // width // LINE
            element, chunk = block // chunks * 4 + lane // LINE, block % chunks * LINE + lane % LINE
            coords = along_unit(source, element, chunk * width)
        store = replace(
            load, operand="scratch", direction="store", instruction="st.global", matrix=target,
            coords=coords, axis=target.unit, part=source.name,
        )  # fmt: skip
        if copy.transposed:
            ctas = -(-place.rows // extents[1]) * place.along * place.matrices
            offsets = _stores(copy, row, column, extents[1])
            bits = 8 * max(4, copy.bytes)
            yield SharedAccess(
                source.name, "store", "st.shared", bits, offsets, executions=ctas, unit="CTA"
            )
            offsets = _swizzled(element, chunk, element // width, extents[1] * copy.bytes)
            yield SharedAccess(
                source.name, "load", "ld.shared", 128, offsets, guard=store, unit="CTA"
            )
        yield store


def _tile(copy: Copy, lines: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the row and vector of each lane of each request of a tile; int [requests, 32]."""
    lane, warp = np.arange(32), np.arange(THREADS // 32)[:, None, None]
    i = np.arange(VECTORS)[:, None]
    block = warp + i // copy.group * (THREADS // 32)
    column = (block & (1 << lines) - 1) * LINE + lane % LINE
    row = ((block >> lines) * 4 + lane // LINE) * copy.group + i % copy.group
    return row.reshape(-1, 32), np.broadcast_to(column, row.shape).reshape(-1, 32)


def _loads(load: GlobalAccess, copy: Copy) -> Iterator[GlobalAccess]:
    """Yield the loads of the words of vectors, and of single elements at the matrix's end."""
    width, matrix = VECTOR // copy.bytes, load.matrix
    ends = copy.words > 1 or matrix.shape[matrix.unit] % width
    for word in range(copy.words):
        step = word * width * (np.arange(2) == matrix.unit)
        part = ("words", "second words")[word] if copy.words > 1 else ""
        whole = replace(load, coords=load.coords + step, words=True, part=part)
        yield whole
        if ends:
            limit = "a word across the matrix's end goes element by element"
            yield replace(
                whole, bits=8 * copy.bytes, width=width, tail="elements", limit=limit,
                part=f"{part}, cut words".lstrip(", "),
            )  # fmt: skip


def _stores(copy: Copy, row: np.ndarray, column: np.ndarray, rows: int) -> np.ndarray:
    """Return the offsets of a tile's words in shared memory, in bytes; int [requests, 32]."""
    width = VECTOR // copy.bytes
    first = row % copy.group == 0  # the requests that finish a group, by its first row
    row, column = row[first[:, 0]][:, None, :], column[first[:, 0]][:, None, :]
    element = column * width + np.arange(width)[:, None]
    place = _swizzled(element, row * copy.bytes // VECTOR, column, rows * copy.bytes)
    return (place + row * copy.bytes % VECTOR).reshape(-1, 32)


def _swizzled(row: np.ndarray, vector: np.ndarray, column: np.ndarray, pitch: int) -> np.ndarray:
    """Return the offset of a word in shared memory, as ``place`` of the template."""
    return row * pitch + VECTOR * (vector ^ column % LINE)
