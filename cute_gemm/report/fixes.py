"""Fixes of the accesses of a kernel, with the figures of the report after each.

A fix is a concrete change: another thread and value layout, a padded leading dimension, a better
aligned base address, the op that fits the storage, another swizzle, another layout of shared
memory. The model of the access evaluates each fix; only those that help are suggested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cute_gemm._text import named
from cute_gemm.access import smem
from cute_gemm.access.accesses import GlobalAccess, SharedAccess
from cute_gemm.access.fix import Fix
from cute_gemm.cute import choose
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.copies import TiledCopy, contiguous
from cute_gemm.cute.layout import Layout, column_major, row_major
from cute_gemm.fixes.search import TilePlacement, cheapest, fix_to, quality, rounds, search
from cute_gemm.fixes.smem import fix_shared, move_to, new_layout, patterns_of
from cute_gemm.fixes.tiles import assumed_partner, shared_access
from cute_gemm.rendering.rows import AccessRow, make_row

if TYPE_CHECKING:
    from cute_gemm.access.accesses import Access

#: The best `quality`.
IDEAL = (True, 1.0, 8 * VECTOR)


def fixes(accesses: Sequence[Access], threads: int = 128) -> list[tuple[Fix, ...]]:
    """Return the fixes of each access of a kernel with ``threads`` per CTA.

    The accesses of a kernel must be given together: a shared-memory layout is fixed for every
    access to its buffer, and a copy into shared memory together with the buffer it fills. Return
    one tuple per access, the fix with the fewest changes first; empty without a known fix.

    A fixed global access is coalesced and 128 bits wide. For each place of the tile (`rounds`) the
    search tries the present copy and the copy that `choose` returns for the widest legal vectors.
    """
    offered: list[tuple[Fix, ...]] = [() for _ in accesses]
    tiles: dict[tuple[str, str], dict[int, SharedAccess]] = {}
    for index, access in enumerate(accesses):
        if isinstance(access, SharedAccess) and access.layout is not None:
            tiles.setdefault((access.operand, str(access.layout)), {})[index] = access
    letters = {
        access.operand: "NT"[access.matrix.unit ^ (access.operand == "B")]
        for access in accesses
        if isinstance(access, GlobalAccess) and access.operand in "AB" and 1 in access.matrix.stride
    }
    buffers: dict[str, list[SharedAccess]] = {}
    for (operand, _), tile in sorted(tiles.items(), key=itemgetter(0)):
        known = [*tile.values()]
        assumed = _other_side(known, threads)
        buffers[operand] = [*known, *assumed]
        for index, layouts in zip(tile, fix_shared(known, assumed), strict=True):
            offered[index] = layouts
    for index, access in enumerate(accesses):
        if not isinstance(access, GlobalAccess) or access.tail == "elements":
            continue
        buffer = buffers.get(access.operand, []) if access.operand != "C" else []
        copies = _GlobalSearch(access, threads, letters, buffer).fixes()
        offered[index] = tuple(fix for fix, _ in copies)
        # If no layout frees the whole buffer of conflicts, a fix of the copy may.
        of_buffer = [tile for (name, _), tile in tiles.items() if buffer and name == access.operand]
        filled = {at: make_row(item) for tile in of_buffer for at, item in tile.items()}
        bad = {at: row for at, row in filled.items() if not row.good}
        if not any(all(fix.figures["conflicts"] for fix in offered[at]) for at in bad):
            continue
        for at, row in bad.items():
            better = tuple(
                fix
                for copied, sides in copies
                for side in [x for x in sides if x.direction == row.direction][:1]
                if (fix := fix_to(copied.what, side, sides)).figures["conflicts"] < row.conflicts
            )
            offered[at] = better or offered[at]
    return offered


# -- global memory --------------------------------------------------------------------------------


class _Tried(NamedTuple):
    """A change of a global access: the new access, by ``copy`` if the copy is new."""

    words: tuple[str, ...]
    row: AccessRow
    copy: TiledCopy | None
    sides: tuple[AccessRow, ...] = ()  #: Accesses to the shared memory that it fills.


class _GlobalSearch:
    """The search for fixes of one global access.

    ``letters`` is the op by operand. ``buffer`` has the accesses to the shared memory that the copy
    fills: if a new copy does not fit their layout, a layout that fits is part of the fix.
    """

    def __init__(
        self, access: GlobalAccess, threads: int, letters: dict[str, str],
        buffer: Sequence[SharedAccess],
    ) -> None:  # fmt: skip
        self.access, self.threads, self.letters, self.buffer = access, threads, letters, buffer
        self.now = make_row(access)
        self.size = access.matrix.element.bytes
        narrow = access.bits < 32 and access.direction == "load" and access.unit == "k-tile"
        self.instruction = "cp.async" if narrow else access.instruction

    def fixes(self) -> list[tuple[Fix, tuple[AccessRow, ...]]]:
        """Return the fixes, each with the accesses to the shared memory that the copy fills."""
        matrix, worst = self.access.matrix, getattr(self.now.analysis, "worst", None)
        if worst is None or quality(self.now) >= IDEAL or self.access.products is not None:
            return []  # copies of several matrices have no search
        tile = TilePlacement(Layout(self.access.tile, matrix.stride), matrix.alignment)
        places = rounds(tile, self.size, matrix.shape, 0, self.stored)
        strided = worst.cause == "strided"
        changes = search(places, self.best_of, _by_quality, _ideal, strided)
        return [(fix_to(", ".join(tried.words), tried.row), tried.sides) for tried in changes]

    def best_of(self, places: Iterable[TilePlacement]) -> _Tried | None:
        """Return the best change of a round, with the shared memory that it needs.

        Return None if no change helps, or if shared memory has no layout for it or costs more.
        """
        every = chain.from_iterable(map(self.tried, places))
        changes = (tried for tried in every if _as_efficient(tried.row, self.now))
        best = cheapest(changes, _by_quality, _ideal)
        if best is None or quality(best.row) <= quality(self.now):
            return None
        return self.with_buffer(best) if self.buffer else best

    def tried(self, place: TilePlacement) -> Iterator[_Tried]:
        """Yield the present copy if the place is new, then the best copy."""
        if place.words and self.movable(place.layout):
            yield _Tried(place.words, make_row(self.in_place(place)), None)
        if (copied := self.copied(place)) is not None:
            yield copied

    def movable(self, layout: Layout) -> bool:
        """Return whether the present copy fits a tile with another layout."""
        old, stride = self.access, layout.stride
        assert isinstance(stride, tuple)
        unit = old.bits <= 8 * self.size or stride[old.axis] == 1
        return layout.extents == old.tile and unit

    def in_place(self, place: TilePlacement) -> GlobalAccess:
        """Return the present access to a matrix at the given place."""
        stride: Any = place.layout.stride  # two integers, as for the matrix
        matrix = replace(self.access.matrix, stride=stride, alignment=place.alignment)
        return replace(self.access, matrix=matrix)

    def copied(self, place: TilePlacement) -> _Tried | None:
        """Return the best copy of a tile with the widest vectors that memory allows."""
        extents, axis = place.layout.extents, choose.contiguous_axis(place.layout)
        if axis is None:
            return None
        for width in _widths(place, axis, self.size):
            copy = choose.vector_copy(
                self.instruction, self.size, extents, axis, width, self.threads
            )
            if not copy.covers(extents) or not self.ends_whole(axis, width):
                continue
            thread, value = copy.layouts
            vector, name = "({},{})".format(*value.extents), f"{copy.atom.name} of {copy.bits} bits"
            words = (f"threads {thread}", f"values {vector}", name, *place.words)
            # The targets of vectors are adjacent in a new layout.
            access = replace(
                self.in_place(place), tile=(extents[0], extents[1]), coords=copy.requests(extents),
                axis=axis, bits=copy.bits, instruction=copy.atom.name, targets=None, least=None,
            )  # fmt: skip
            return _Tried(words, make_row(access), copy)
        return None

    def ends_whole(self, axis: int, width: int) -> bool:
        """Return whether vectors end where the matrix does: stores must not go beyond it."""
        # Check the matrix too: the region may consist of full tiles alone.
        ends = self.access.region[axis], self.access.matrix.shape[axis]
        return self.access.direction == "load" or not any(end % width for end in ends)

    def stored(self, pitched: int, pitch: int) -> tuple[str, ...]:
        """Return how to ask for an operand of another major: by the op, or by C's order."""
        matrix, letters = self.access.matrix, self.letters
        words = f"{matrix.name} {matrix.modes[pitched]}-major"
        if matrix.name == "C":
            words = f'order="{"C" if pitched else "F"}", {words}'
        else:
            letters = letters | {matrix.name: "T" if letters.get(matrix.name) == "N" else "N"}
            op = "".join(letters.get(name, "") for name in "AB")
            words = f"op {op}, {words}" if len(op) == 2 else words
        more = f"leading dimension {pitch}"
        return (words, more) if pitch > matrix.shape[pitched] else (words,)

    def with_buffer(self, tried: _Tried) -> _Tried | None:
        """Return a change with its shared memory, which is the present one if the copy fits.

        Return None if no layout makes its vectors contiguous, or if that costs more.
        """
        copy, layout, access = tried.copy, self.buffer[0].layout, tried.row.access
        assert isinstance(access, GlobalAccess)
        axis, extents = access.axis, access.tile
        if copy is None or layout is None or layout.extents != extents:
            return tried
        fits = contiguous(copy.offsets(layout))
        loads = [access for access in self.buffer if access.direction == "load"]
        sides, read = loads, ""
        if not fits:
            # The operand changes its major: loads of single elements stay, ldmatrix transposes.
            layout = (row_major if axis else column_major)(*extents)
            sides = [move_to(load, layout) for load in loads if load.bits == load.element_bits]
            if any(smem.matrices(load.instruction) for load in loads):
                transposed = _assumed(layout, self.size, "store")
                sides = [*sides, *transposed]
                read = "".join(f" read by {load.instruction}" for load in transposed)
            if loads and not sides and not read:
                read = " (for its stores; the loads have to be transposed too)"
        sides = [shared_access(choose.shared_side(copy), layout, "store"), *sides]
        if fits and all(smem.analyze(access).conflict_free for access in sides):
            return tried
        patterns = patterns_of(sides)
        new = new_layout(patterns, self.size, layout) if patterns else None
        if new is None:
            return None
        if new.excess:
            read += f", with {new.excess} wavefronts per tile above the ideal"
        moved = tuple(make_row(move_to(access, new.layout)) for access in sides)
        words = (*tried.words, f"into shared memory {new.what}{read}")
        dearer = _dearer(moved, [*map(make_row, self.buffer)])
        return None if dearer else tried._replace(words=words, sides=moved)


def _by_quality(tried: _Tried) -> tuple[bool, float, int]:
    """Return the rank of a change: the best quality first."""
    aligned, ideal, bits = quality(tried.row)
    return not aligned, -ideal, -bits


def _ideal(tried: _Tried) -> bool:
    return quality(tried.row) >= IDEAL


def _as_efficient(new: AccessRow, old: AccessRow) -> bool:
    """Return whether bytes are moved, and no more of them are unused than before."""
    return bool(new.counts.requests) and (new.efficiency or 0) >= (old.efficiency or 0)


def of_part(fixes: Sequence[Fix], part: GlobalAccess) -> tuple[Fix, ...]:
    """Return another part's fixes, applied to this part of the copy, if they fix it too."""
    now, offered = make_row(part), []
    for fix in fixes:
        assert fix.access is not None
        changed = named(fix.access, "matrix", "tile", "coords", "axis", "bits", "instruction")
        same = np.array_equal(part.coords, fix.access.coords)
        own = named(part, "targets", "least") if same else {"targets": None, "least": None}
        row = make_row(replace(part, **changed, **own))
        if _as_efficient(row, now) and quality(row) > quality(now):
            offered.append(fix_to(fix.what, row))
    return tuple(offered)


def _widths(place: TilePlacement, axis: int, size: int) -> Iterator[int]:
    """Yield the vector widths in elements that memory allows along ``axis``, the widest first."""
    table = place.layout.table()
    width = min(VECTOR // size, choose.run(table, axis))
    while width:
        starts = np.take(table, np.arange(0, table.shape[axis], width), axis=axis)
        if width == 1 or not (place.alignment % (width * size) or (starts % width).any()):
            yield width
        width //= 2


# -- the shared memory that a copy fills ----------------------------------------------------------


def _dearer(new: Sequence[AccessRow], old: Sequence[AccessRow]) -> bool:
    """Return whether shared memory costs more: its stores, or its loads relative to their ideal."""

    def total(rows: Sequence[AccessRow], direction: str) -> tuple[int, int]:
        counts: list[Any] = [row.counts for row in rows if row.direction == direction]
        return sum(x.wavefronts for x in counts), sum(x.ideal_wavefronts for x in counts)

    (stores, _), (old_stores, _) = total(new, "store"), total(old, "store")
    (loads, ideal), (old_loads, old_ideal) = total(new, "load"), total(old, "load")
    return stores > old_stores > 0 or loads * old_ideal > old_loads * ideal


def _other_side(known: Sequence[SharedAccess], threads: int) -> list[SharedAccess]:
    """Return the assumed loads of a buffer with known stores, or the assumed stores.

    ldmatrix reads stores; vectors of 16 bytes store what ldmatrix reads.
    """
    layout, direction = known[0].layout, known[0].direction
    loaded = direction == "load" and not any(smem.matrices(x.instruction) for x in known)
    if layout is None or loaded or any(access.direction != direction for access in known):
        return []
    return _assumed(layout, known[0].element_bits // 8, direction, threads)


def _assumed(
    layout: Layout, size: int, known: Literal["load", "store"], threads: int = 0
) -> list[SharedAccess]:
    partner = assumed_partner(layout, size, known, threads)
    access = partner and partner.access(layout)
    return [access] if access else []
