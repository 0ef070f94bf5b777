"""Rules that select the copy of a tile and its layout in shared memory.

Kernels are built from these rules, and fixes quote them. ``size`` is always the bytes of an
element, and ``axis`` the mode along which a tile is contiguous: 0 (M or N of an MN-major operand)
or 1 (K).
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd, log2

import numpy as np

from cute_gemm.cute.atoms import LDMATRIX, LDMATRIX_TRANS, CopyAtom, cp_async, universal
from cute_gemm.cute.copies import LANES, TiledCopy, contiguous, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, Swizzle, column_major, compact, row_major

#: Bytes of the widest vector, of a sector, and of a row across shared memory's 32 banks.
VECTOR, SECTOR, ROW = 16, 32, 128


# -- copies ---------------------------------------------------------------------------------------


def run(table: np.ndarray, axis: int) -> int:
    """Return the number of contiguous elements of a table along ``axis``; a power of two."""
    lines, width = np.moveaxis(table, axis, -1), 1
    while lines.shape[-1] % (2 * width) == 0 and contiguous(lines.reshape(-1, 2 * width)):
        width *= 2
    return width


def contiguous_axis(layout: Layout) -> int | None:
    """Return the mode of the longest contiguous runs; None if no elements are contiguous."""
    runs = [run(layout.table(), axis) for axis in (0, 1)]
    return None if max(runs) == 1 else runs.index(max(runs))


def unit_mode(layout: Layout) -> int:
    """Return the mode along which elements are contiguous; 1 if neither is."""
    axis = contiguous_axis(layout)
    return 1 if axis is None else axis


def copy_atom(instruction: str, bits: int) -> CopyAtom:
    """Return the instruction that copies ``bits`` per thread: a load if cp.async cannot.

    cp.async copies 32 bits or more.
    """
    if instruction == "cp.async":
        return cp_async(bits) if bits >= 32 else universal("ld.global", bits)
    return universal(instruction, bits)


def shared_side(copy: TiledCopy) -> TiledCopy:
    """Return the stores to shared memory of a copy from global memory."""
    if copy.atom.name == "cp.async":
        return copy
    return replace(copy, atom=universal("st.shared", min(copy.atom.bits, 8 * VECTOR)))


def vector_copy(
    instruction: str, size: int, extents: tuple[int, ...], axis: int, width: int, threads: int
) -> TiledCopy:
    """Return the copy of a tile by vectors of ``width`` elements along ``axis``.

    The number of adjacent threads along that mode is its number of vectors, so the runs of a
    request are as long as possible; the other threads are distributed across it. Use
    `TiledCopy.covers` to check whether the tile has a part for each thread.
    """
    lanes = gcd(extents[axis] // width, threads)
    atom = copy_atom(instruction, 8 * size * width)
    by_threads = compact(axis, lanes, threads // lanes)
    return gmem_tiled_copy(atom, 8 * size, by_threads, compact(axis, width))


def place_copy(size: int, extents: tuple[int, int], axis: int, threads: int) -> TiledCopy:
    """Return the copy that shifts the 16-byte words of a tile's rows into place.

    A thread moves runs of four words, which it holds together, or shorter runs if the tile has
    fewer words per thread. The lanes of a warp lie across the rows first, whose words are in
    different banks (`spaced_rows`).
    """
    vector = VECTOR // size
    words = extents[axis] // vector
    run = min(4, words, max(1, words * extents[1 - axis] // threads))
    lanes = words // run  # per row
    across = LANES // lanes
    shape, stride = ((across, threads // LANES), lanes), ((1, LANES), across)
    places = Layout(shape, stride) if axis else Layout(shape[::-1], stride[::-1])
    copy = universal("st.shared", 8 * VECTOR)
    return gmem_tiled_copy(copy, 8 * size, places, compact(axis, run * vector))


def lanes_along_k(size: int, columns: int, width: int) -> int:
    """Return the lanes along k that copy and transpose a K-major tile: those of a sector."""
    lanes = 8 if width == 1 and size > 2 else SECTOR // (width * size)
    return max(1, min(lanes, columns // width))


def turning_copy(
    size: int, extents: tuple[int, int], width: int, rows: int, threads: int
) -> tuple[TiledCopy, TiledCopy]:
    """Return the load and the store of a K-major tile that is MN-major in shared memory.

    A thread has a block of ``rows`` x ``width`` elements: vectors along k of global memory, which
    it stores as vectors along the rows. Threads beyond the rows continue along k.
    """
    lanes = lanes_along_k(size, extents[1], width)
    down = min(extents[0] // rows, threads // lanes)
    places = Layout((down, (lanes, threads // lanes // down)), (lanes, (1, lanes * down)))
    load = gmem_tiled_copy(
        universal("ld.global", 8 * size * width), 8 * size, places, row_major(rows, width)
    )
    store = gmem_tiled_copy(
        universal("st.shared", 8 * size * rows), 8 * size, places, column_major(rows, width)
    )
    return load, store


def matrix_copy(atom: CopyAtom, size: int, extents: tuple[int, ...], axis: int) -> TiledCopy | None:
    """Return the copy of a warp by ldmatrix or stmatrix with rows of 16 bytes along ``axis``.

    The matrices of an x4 form a 2 x 2 block, with the next one across the rows (as the MMA's A
    requires), those of an x2 are adjacent along the rows; if the extents do not allow that, they
    form one line. None if the tile is not a multiple of any such block.
    """
    assert atom.destination is not None
    number = atom.destination.table()[:, :: 8 * size] // (8 * size)
    width = VECTOR // size
    count, deep = number.size // (atom.rows * width), atom.rows  # matrices, and rows of each
    row, place = number // width, number % width
    for across in {1: (1,), 2: (1, 2), 4: (2, 1, 4)}[count]:
        step = (deep * across, width * (count // across))
        held = row // deep % across * deep + row % deep, row // deep // across * width + place
        if axis == 0:
            step, held = step[::-1], held[::-1]
        copy = TiledCopy(atom, 8 * size, step, np.stack(held, axis=-1))
        if copy.covers(extents):
            return copy
    return None


# -- shared memory --------------------------------------------------------------------------------


def reader(size: int, axis: int) -> CopyAtom:
    """Return the instruction that loads a tile to the tensor cores' registers.

    ldmatrix transposes 16-bit elements only; other elements are loaded one by one.
    """
    if size > 4 or (axis == 0 and size != 2):
        return universal("ld.shared", 8 * size)
    return LDMATRIX if axis else LDMATRIX_TRANS


def swizzled_atom(size: int, extents: tuple[int, ...], axis: int, by: CopyAtom) -> Layout:
    """Return the swizzled atom that frees 16-byte stores and the reader ``by`` of bank conflicts.

    Rows are 128 bytes, or as long as those of the tile if these are shorter. ldmatrix and 16-byte
    loads read one 16-byte chunk of each of 8 rows: the number of the 128-byte line is XORed into
    that of the chunk. 4- and 8-byte MMA loads read 32 bytes of each of 4 rows: the number is XORed
    into that of the 32-byte chunk. Loads of 16-byte elements do the same except along K, where they
    read 64 bytes of each of 2 rows. Byte loads read 8 bytes of every fourth row: the number of that
    row is XORed.
    """
    row = gcd(extents[axis], ROW // size)
    row_bits, line_bits = int(log2(row)), int(log2(ROW // size))
    if by.bits == 8 * VECTOR and size < VECTOR:
        base = int(log2(VECTOR // size))
        # (FMA on an MN-major operand reads consecutive 16-byte words.)
        most = 0 if by.threads == 1 and axis == 0 else 3
    elif size > 1:
        chunk = max(32, 4 * size * axis)
        base, most = int(log2(chunk // size)), int(log2(ROW // chunk))
    else:
        base, most, line_bits = 4, 2, row_bits + 2
    bits = min(most, row_bits - base)
    swizzle = Swizzle(bits, base, line_bits - base) if bits > 0 else None
    rows = gcd(extents[1 - axis], 16 if size == 1 and axis == 0 else 8)
    return replace(compact(axis, row, rows), swizzle=swizzle)


def spaced_rows(
    size: int, extents: tuple[int, int], axis: int, stages: int
) -> tuple[Layout, Layout, int]:
    """Return layouts of tiles whose rows are padded by one 16-byte word.

    Return the layout of one tile, the layout of all ``stages``, and the elements from one stage to
    the next.
    """
    pitch = extents[axis] + VECTOR // size
    stage = extents[1 - axis] * pitch
    strides = (pitch, 1) if axis else (1, pitch)
    return Layout(extents, strides), Layout((*extents, stages), (*strides, stage)), stage


def skewed_tile(
    size: int, extents: tuple[int, int], skew: str, together: bool, transposed: int
) -> tuple[Layout, int]:
    """Return the layout of an MN-major tile that FMA threads read, and its number of elements.

    ``transposed`` is the width of the vectors along k in which a K-major operand is loaded, or 0
    without a transposition. `lanes_along_k` adjacent lanes store it, each one vector along k after
    the previous lane. k is split so that their rows are adjacent in shared memory, and padding or
    an XOR of the row's number with the column's moves their words to different banks. If a thread's
    results lie ``together``, its vectors are further apart than a vector, and the columns' higher
    bits are XORed too. ``skew`` is the kernels' option of that name.
    """
    rows, columns = extents
    chunk, padding = max(1, VECTOR // size), 0
    lanes = min(8, lanes_along_k(size, columns, transposed or 1))
    spread = ROW // lanes // size  # elements of a row over which the stores of one k spread
    if skew == "padding" and together:
        group = 8 * chunk
        pitch = rows // group * (group + chunk) + (chunk if chunk <= 4 else 0)
        layout = Layout(((group, rows // group), columns), ((1, group + chunk), pitch))
        return layout, pitch * columns
    if skew == "xor" and (transposed or together):
        swizzle = Swizzle(3, int(log2(chunk)), 3)
        if not together:
            base = int(log2(spread))
            swizzle = Swizzle(int(log2(lanes)), base, int(log2(rows)) - base)
        split = transposed or 1
        stride = (1, (rows * (columns // split), rows))
        return Layout((rows, (split, columns // split)), stride, swizzle), rows * columns
    if transposed and skew == "transposed":
        padding = chunk
    elif transposed and skew == "padding":
        padding = max(chunk, spread // transposed)
    pitch = rows + padding
    return Layout(extents, (1, pitch)), pitch * columns
