"""Layouts of a shared-memory buffer that avoid bank conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cute_gemm.access import smem
from cute_gemm.access.fix import Fix
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.choose import ROW, VECTOR
from cute_gemm.cute.layout import Layout, Swizzle, column_major, row_major, tile_to_shape
from cute_gemm.fixes.search import fix_to
from cute_gemm.rendering.rows import MISALIGNED, make_row

if TYPE_CHECKING:
    from cute_gemm.access.accesses import SharedAccess


class SharedTile(NamedTuple):
    """A layout of a tile in shared memory, with its wavefronts in excess of the ideal."""

    what: str
    layout: Layout
    excess: int


class Pattern(NamedTuple):
    """The requests of one instruction to a tile, by coordinates."""

    instruction: str
    bits: int
    lanes: np.ndarray  # int [distinct requests, 32]: linear coordinates in the tile, -1 for none
    vectors: np.ndarray  # int [n, width]: linear coordinates that must stay contiguous
    axis: int | None  # along which those vectors run

    def whole(self, table: np.ndarray) -> bool:
        """Return whether vectors are contiguous and aligned in a layout's table."""
        width = self.vectors.shape[1]
        if width == 1:
            return True
        at = table.reshape(-1)[self.vectors]
        return bool(((at == at[:, :1] + np.arange(width)) & (at[:, :1] % width == 0)).all())


#: Yields candidates with their names, from the present layout, its patterns and an element's bytes.
Kind = Callable[[Layout, "Sequence[Pattern]", int], "Iterator[tuple[str, Layout]]"]


def fix_shared(
    accesses: Sequence[SharedAccess], assumed: Sequence[SharedAccess] = ()
) -> list[tuple[Fix, ...]]:
    """Return layouts of a shared-memory buffer that avoid conflicts of all its accesses.

    Candidates are, in this order: other swizzles of the same layout; the kernels' atoms and other
    swizzled atoms of 8 or 16 rows of up to 128 bytes, repeated over the tile; rows padded by up to
    128 bytes. Vectors stay whole. ``accesses``: all accesses of one buffer, with the same
    ``layout``, with ``coords`` and ``element_bits``; ``assumed``: further accesses that are likely.
    Return one tuple per access, empty for accesses without conflicts: the first layout of each kind
    with which no access has conflicts. If every layout has conflicts, the tuple of an access that
    improves has the layout with the fewest conflicts that adds no conflict to any of ``accesses``.
    """
    offered: list[tuple[Fix, ...]] = [() for _ in accesses]
    together = (*accesses, *assumed)
    now = [make_row(access) for access in accesses]
    patterns = patterns_of(together)
    if all(row.good for row in now) or patterns is None:
        return offered
    layout, size = accesses[0].layout, accesses[0].element_bits // 8
    assert layout is not None
    kinds = swizzled, atoms, padded
    best = [tile for kind in kinds for tile in ranked(patterns, size, kind, layout, 1)]
    present = _excess(patterns, size, layout.table())
    better = sorted((x for x in best if x.excess < present), key=attrgetter("excess"))
    tiles = [tile for tile in best if not tile.excess] or better[:1]
    distinct: dict[bytes, SharedTile] = {}
    for tile in tiles:
        distinct.setdefault(tile.layout.table().tobytes(), tile)
    for tile in distinct.values():
        new = [make_row(move_to(access, tile.layout)) for access in together]
        pairs = [*zip(new, now, strict=False)]  # without those that are assumed
        if any(after.conflicts > before.conflicts for after, before in pairs):
            continue
        for index, (after, before) in enumerate(pairs):
            fewer = after.conflicts < before.conflicts
            if not before.good and (fewer or before.verdict == MISALIGNED):
                offered[index] += (fix_to(tile.what, after, new),)
    return offered


def patterns_of(accesses: Sequence[SharedAccess]) -> list[Pattern] | None:
    """Return the patterns of a buffer's accesses; None if coordinates are not known."""
    layout = accesses[0].layout
    if layout is None or layout.rank != 2:
        return None
    table = layout.table()
    patterns: dict[tuple[str, int], Pattern] = {}
    for access in accesses:
        if access.coords is None or not access.element_bits or access.layout != layout:
            return None
        bits = 8 * VECTOR if smem.matrices(access.instruction) else access.bits
        width = max(1, bits // access.element_bits)
        coords = access.coords.reshape(-1, 32, 2)
        idle = (coords < 0).any(axis=-1)
        lanes = np.where(idle, -1, coords @ (table.shape[1], 1))
        key = access.instruction, access.bits
        if key in patterns:  # the same instruction at another time
            lanes = np.concatenate([patterns[key].lanes, lanes])
        lanes = np.unique(lanes, axis=0)
        first = np.unique(lanes[lanes >= 0])
        for axis in (0, 1):
            vectors = first[:, None] + np.arange(width) * (table.shape[1], 1)[axis]
            pattern = Pattern(*key, lanes, vectors, axis if width > 1 else None)
            if vectors.max(initial=0) < table.size and pattern.whole(table):
                patterns[key] = pattern
                break
        else:
            return None
    return [*patterns.values()]


def move_to(access: SharedAccess, layout: Layout) -> SharedAccess:
    """Return the access with its tile in another layout."""
    coords = access.coords
    assert coords is not None
    at = layout.table()[coords[..., 0], coords[..., 1]] * access.element_bits // 8
    at = np.where((coords < 0).any(axis=-1), -1, at)
    return replace(access, offsets=at, layout=layout)


def _excess(patterns: Sequence[Pattern], size: int, table: np.ndarray) -> int:
    """Return the wavefronts in excess of the ideal."""
    total = 0
    for pattern in patterns:
        at = np.where(pattern.lanes < 0, -1, table.reshape(-1)[pattern.lanes] * size)
        words = smem.phase_words(pattern.instruction, pattern.bits, at)
        wavefronts, distinct = smem.phase_wavefronts(words)
        total += int((wavefronts + -distinct // smem.BANKS).sum())
    return total


def ranked(
    patterns: Sequence[Pattern], size: int, kind: Kind, layout: Layout, most: int
) -> Iterator[SharedTile]:
    """Yield up to ``most`` candidates without conflicts, else with the fewest.

    Vectors stay whole. A candidate must not exceed its ``cosize`` in C++ CuTe, that of the layout
    without its swizzle, because a kernel reserves that many elements.
    """
    others: list[SharedTile] = []
    counted, free = set(), 0
    for what, new in kind(layout, patterns, size):
        words = new.shape, new.stride, _of_words(new.swizzle, size)
        if words in counted:  # no better than the one before
            continue
        table = new.table()
        reserved = 1 + sum((extent - 1) * stride for extent, stride in new.leaves)
        if table.max() >= new.offset + reserved or not all(x.whole(table) for x in patterns):
            continue
        counted.add(words)
        tile = SharedTile(what, new, _excess(patterns, size, table))
        if tile.excess:
            others.append(tile)
            continue
        yield tile
        free += 1
        if free == most:
            return
    yield from sorted(others, key=attrgetter("excess"))[: max(1, (most - free) // 4)]


def _of_words(swizzle: Swizzle | None, size: int) -> Swizzle | None:
    """Return a swizzle of elements as one of 4-byte words: bits within a word change no bank."""
    if swizzle is None:
        return None
    within = max(0, (smem.WORD // size).bit_length() - 1 - swizzle.base)
    if within >= swizzle.bits:
        return None
    return Swizzle(swizzle.bits - within, swizzle.base + within, swizzle.shift)


def _swizzles(patterns: Sequence[Pattern], size: int, extent: int) -> list[Swizzle]:
    """Return swizzles that keep vectors whole and stay within ``extent`` elements, least first."""
    lowest = _widest(patterns).bit_length() - 1
    row = (ROW // size).bit_length() - 1
    swizzles = (
        Swizzle(bits, base, shift)
        for base in range(lowest, row)
        for bits in range(1, row - base + 1)
        for shift in range(bits, extent.bit_length() - base - bits)
        if extent % (1 << (base + bits)) == 0
    )
    return sorted(
        swizzles, key=lambda swizzle: (swizzle.bits, abs(swizzle.shift - 3), swizzle.base)
    )


def swizzled(
    layout: Layout, patterns: Sequence[Pattern], size: int
) -> Iterator[tuple[str, Layout]]:
    """Yield the same layout with each swizzle."""
    old = layout.swizzle
    # A swizzle needs no more room than the rows with their padding.
    room = max((extent * stride for extent, stride in layout.leaves), default=1)
    for swizzle in (None, *_swizzles(patterns, size, max(room, 1))):
        if swizzle != old and not (layout.offset and swizzle is None):
            new = Layout(layout.shape, layout.stride, swizzle, layout.offset)
            what = f"{swizzle} in place of {old}" if swizzle and old else "a swizzle"
            yield f"{what if swizzle else 'no swizzle'}: {new}", new


def _axes(patterns: Sequence[Pattern], layout: Layout) -> list[int]:
    """Return the modes along which rows of a layout may run, the present one first."""
    axes = {pattern.axis for pattern in patterns if pattern.axis is not None} or {0, 1}
    return sorted(axes, key=lambda axis: (axis != choose.contiguous_axis(layout), axis))


def atoms(layout: Layout, patterns: Sequence[Pattern], size: int) -> Iterator[tuple[str, Layout]]:
    """Yield swizzled atoms, repeated over the tile: that of a kernel with such reads first."""
    extents = layout.extents
    axes = _axes(patterns, layout)
    for atom in (*_chosen(extents, axes, patterns, size), *_tried(axes, patterns, size)):
        if all(extent % step == 0 for extent, step in zip(extents, atom.extents, strict=True)):
            yield f"{atom}, tiled to ({extents[0]},{extents[1]})", tile_to_shape(atom, extents)


def _chosen(
    extents: tuple[int, ...], axes: Sequence[int], patterns: Sequence[Pattern], size: int
) -> Iterator[Layout]:
    """Yield the atoms of kernels that read with these instructions."""
    instructions = {(pattern.instruction, pattern.bits) for pattern in patterns}
    for axis in axes:
        for by in (choose.reader(size, axis), universal("ld.shared", 8 * VECTOR)):
            if (by.name, by.bits) in instructions:
                yield choose.swizzled_atom(size, extents, axis, by)


def _tried(axes: Sequence[int], patterns: Sequence[Pattern], size: int) -> Iterator[Layout]:
    for axis, row, rows in product(axes, (128, 64, 32, 16), (8, 16)):
        row //= size
        if row >= _widest(patterns):
            plain = row_major(rows, row) if axis else column_major(row, rows)
            for swizzle in (None, *_swizzles(patterns, size, rows * row)):
                yield Layout(plain.shape, plain.stride, swizzle)


def padded(layout: Layout, patterns: Sequence[Pattern], size: int) -> Iterator[tuple[str, Layout]]:
    """Yield layouts with padded rows."""
    extents, widest = layout.extents, _widest(patterns)
    words = max(widest, smem.WORD // size, 1)
    every = range(widest, ROW // size + 1, widest)
    steps = sorted(every, key=lambda step: (step % words > 0, step))
    for axis in _axes(patterns, layout):
        for padding in steps:
            pitch = extents[axis] + padding
            new = Layout(extents, (pitch, 1) if axis else (1, pitch))
            yield f"{new}, rows padded by {padding * size} bytes", new


def new_layout(patterns: Sequence[Pattern], size: int, layout: Layout) -> SharedTile | None:
    """Return the best layout of atoms for a tile with the extents of ``layout``."""
    return next(ranked(patterns, size, atoms, row_major(*layout.extents), 1), None)


def _widest(patterns: Sequence[Pattern]) -> int:
    """Return the elements of the longest vector."""
    return max(pattern.vectors.shape[1] for pattern in patterns)
