"""What layout of a shared-memory buffer would free all its accesses of conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import product
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import named, number
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.choose import ROW, VECTOR
from cute_gemm.cute.layout import Layout, Swizzle, column_major, row_major, tile_to_shape
from cute_gemm.model import smem

if TYPE_CHECKING:
    from cute_gemm.access import GlobalAccess, SharedAccess


@dataclass(frozen=True, slots=True)
class Fix:
    """One change that fixes an access.

    ``what`` is the change: ``"threads (32,4):(4,1), values (1,8), cp.async of 128 bits"``;
    ``reading`` what the report reads then: ``"16 sectors per request, ideal 16, 100 %"``;
    ``figures`` the same as numbers, by the names of ``AccessRow``'s attributes.
    """

    what: str
    reading: str
    figures: dict[str, float] = field(hash=False)
    #: Of a copy of one's own: the arguments of ``analyze_copy`` that differ then.
    change: dict[str, Any] = field(default_factory=dict, hash=False)
    #: Of a kernel's global access: what it is then.
    made: GlobalAccess | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.what} ({self.reading})"

    def to_dict(self) -> dict[str, Any]:
        """Return what it is and what is read then, by name."""
        return named(self, "what", "reading", "figures", "change")


class Home(NamedTuple):
    """A shared-memory layout with the wavefronts that it takes above the ideal."""

    what: str
    layout: Layout
    excess: int


class Want(NamedTuple):
    """What one instruction wants of a layout."""

    instruction: str
    bits: int
    lanes: np.ndarray  # int [distinct requests, 32]: linear coordinates in the tile, -1 for none
    vectors: np.ndarray  # int [n, width]: linear coordinates of what must stay contiguous
    axis: int | None  # along which those vectors run

    def whole(self, table: np.ndarray) -> bool:
        """Whether its vectors are contiguous and aligned in a layout's table."""
        width = self.vectors.shape[1]
        if width == 1:
            return True
        at = table.reshape(-1)[self.vectors]
        return bool(((at == at[:, :1] + np.arange(width)) & (at[:, :1] % width == 0)).all())


#: Makes candidates, each with its name: from the present layout, its wants and an element's bytes.
Kind = Callable[[Layout, "Sequence[Want]", int], "Iterator[tuple[str, Layout]]"]


def fix_shared(
    accesses: Sequence[SharedAccess], assumed: Sequence[SharedAccess] = ()
) -> list[tuple[Fix, ...]]:
    """What layout of a shared-memory buffer would free all its accesses of conflicts.

    Tried are, in this order: other swizzles of the same layout; the kernels' own choice and other
    atoms of 8 or 16 rows of up to 128 bytes, swizzled, repeated over the tile; rows padded by up to
    128 bytes. Vectors stay whole. ``accesses`` are all those of one buffer, with the same
    ``layout``, with ``coords`` and ``element_bits``; ``assumed`` others that it is likely to have.
    One tuple per access, empty for those without conflicts: the first layout of each kind under
    which no access has any; when there is none, the one that has fewest, where no access of
    ``accesses`` has more than now, for those that have less.
    """
    free = [smem.analyze(access).conflict_free for access in accesses]
    everything = (*accesses, *assumed)
    wants = wants_of(everything)
    if all(free) or wants is None:
        return [()] * len(accesses)
    layout, size = accesses[0].layout, accesses[0].element_bits // 8
    assert layout is not None
    found = [search(wants, size, kind, layout) for kind in (swizzled, atoms, padded)]
    homes = [home for home in found if home and home.excess == 0]
    if not homes:
        present = _excess(wants, size, layout.table())
        better = [home for home in found if home and home.excess < present]
        homes = sorted(better, key=lambda home: home.excess)[:1]
    homes = list({home.layout.table().tobytes(): home for home in homes[::-1]}.values())[::-1]
    now = _conflicts(accesses)
    offered: list[list[Fix]] = [[] for _ in accesses]
    for home in homes:
        moved = [move_to(access, home.layout) for access in everything]
        then = _conflicts(moved[: len(accesses)])
        if any(after > before for after, before in zip(then, now, strict=True)):
            continue
        for index, good in enumerate(free):
            legal = smem.analyze(accesses[index]).aligned
            if not good and (then[index] < now[index] or not legal):
                offered[index].append(shared_fix(home.what, moved, index))
    return [*map(tuple, offered)]


def _conflicts(accesses: Sequence[SharedAccess]) -> list[int]:
    return [smem.analyze(access).once.conflicts for access in accesses]


def shared_fix(what: str, accesses: Sequence[SharedAccess], index: int) -> Fix:
    """The fix of the access at ``index`` of a buffer, where ``accesses`` are those it has then."""
    found = [smem.analyze(access).once for access in accesses]
    taken = [once.wavefronts / once.requests for once in found]
    ideal = [once.ideal_wavefronts / once.requests for once in found]
    beside = {
        f"{access.instruction} {number(taken[i])}, ideal {number(ideal[i])}": None
        for i, access in enumerate(accesses)
        if access.instruction != accesses[index].instruction
    }
    plural = "" if taken[index] == 1 else "s"
    reading = f"{number(taken[index])} wavefront{plural} per request, ideal {number(ideal[index])}"
    figures = {"wavefronts": taken[index], "ideal_wavefronts": ideal[index]}
    figures["conflicts"] = found[index].conflicts / found[index].requests
    return Fix(what, "; ".join((reading, *beside)), figures)


def wants_of(accesses: Sequence[SharedAccess]) -> list[Want] | None:
    """What the accesses of a buffer want of its layout; None where that is not known."""
    layout = accesses[0].layout
    if layout is None or layout.rank != 2:
        return None
    table = layout.table()
    wants: dict[tuple[str, int], Want] = {}
    for access in accesses:
        if access.coords is None or not access.element_bits or access.layout != layout:
            return None
        bits = 8 * VECTOR if smem.matrices(access.instruction) else access.bits
        width = max(1, bits // access.element_bits)
        coords = access.coords.reshape(-1, 32, 2)
        idle = (coords < 0).any(axis=-1)
        lanes = np.where(idle, -1, coords @ (table.shape[1], 1))
        key = access.instruction, access.bits
        if key in wants:  # the same instruction at another time
            lanes = np.concatenate([wants[key].lanes, lanes])
        lanes = np.unique(lanes, axis=0)
        first = np.unique(lanes[lanes >= 0])
        for axis in (0, 1):
            vectors = first[:, None] + np.arange(width) * (table.shape[1], 1)[axis]
            along = axis if width > 1 else None
            want = Want(access.instruction, access.bits, lanes, vectors, along)
            if vectors.max(initial=0) < table.size and want.whole(table):
                wants[key] = want
                break
        else:
            return None
    return list(wants.values())


def move_to(access: SharedAccess, layout: Layout) -> SharedAccess:
    """The access with its tile in another layout."""
    coords = access.coords
    assert coords is not None
    at = layout.table()[coords[..., 0], coords[..., 1]] * access.element_bits // 8
    at = np.where((coords < 0).any(axis=-1), -1, at)
    return replace(access, offsets=at, layout=layout)


def _excess(wants: Sequence[Want], size: int, table: np.ndarray, limit: float = inf) -> int:
    """Wavefronts above the ideal; the count stops at ``limit``."""
    total = 0
    for want in wants:
        at = np.where(want.lanes < 0, -1, table.reshape(-1)[want.lanes] * size)
        words = smem.phase_words(want.instruction, want.bits, at)
        wavefronts, distinct = smem.phase_wavefronts(words)
        total += int((wavefronts + -distinct // smem.BANKS).sum())
        if total >= limit:
            break
    return total


#: Homes that were looked for, 64 at most: the two operands of a kernel often want the same.
_searched: dict[Any, Home | None] = {}


def search(wants: Sequence[Want], size: int, kind: Kind, layout: Layout) -> Home | None:
    """The first candidate without a conflict, or the one that has fewest; vectors stay whole."""
    digest = blake2b(digest_size=16)
    for want in wants:
        digest.update(repr((*want[:2], want.lanes.shape, want.vectors.shape, want.axis)).encode())
        digest.update(want.lanes.tobytes() + want.vectors.tobytes())
    question = kind, str(layout), size, digest.digest()
    if question not in _searched:
        if len(_searched) >= 64:
            _searched.clear()
        _searched[question] = _search(wants, size, kind(layout, wants, size))
    return _searched[question]


def _search(
    wants: Sequence[Want], size: int, candidates: Iterable[tuple[str, Layout]]
) -> Home | None:
    fewest: Home | None = None
    for what, layout, table in _fitting(wants, size, candidates):
        limit = fewest.excess if fewest else inf
        excess = _excess(wants, size, table, limit)
        if excess < limit:
            fewest = Home(what, layout, excess)
            if not excess:
                break
    return fewest


def _fitting(
    wants: Sequence[Want], size: int, candidates: Iterable[tuple[str, Layout]]
) -> Iterator[tuple[str, Layout, np.ndarray]]:
    """The candidates that keep vectors whole, each with its table, one for each use of the banks.

    None reaches past the ``cosize`` of C++ CuTe, which is that of the layout without its swizzle
    and is what a kernel reserves.
    """
    counted = set()
    for what, layout in candidates:
        words = layout.shape, layout.stride, _of_words(layout.swizzle, size)
        if words in counted:  # no better than the one before
            continue
        table = layout.table()
        reserved = 1 + sum((extent - 1) * stride for extent, stride in layout.leaves)
        if table.max() < layout.offset + reserved and all(want.whole(table) for want in wants):
            counted.add(words)
            yield what, layout, table


def ranked(
    wants: Sequence[Want], size: int, kind: Kind, layout: Layout, most: int
) -> Iterator[Home]:
    """Up to ``most`` candidates without a conflict, else those of fewest; vectors stay whole."""
    others: list[Home] = []
    free = 0
    for what, new, table in _fitting(wants, size, kind(layout, wants, size)):
        home = Home(what, new, _excess(wants, size, table))
        if home.excess:
            others.append(home)
            continue
        yield home
        free += 1
        if free == most:
            return
    yield from sorted(others, key=attrgetter("excess"))[: max(1, (most - free) // 4)]


def _of_words(swizzle: Swizzle | None, size: int) -> Swizzle | None:
    """What a swizzle of elements does to 4-byte words: its bits within a word change no bank."""
    if swizzle is None:
        return None
    within = max(0, (smem.WORD // size).bit_length() - 1 - swizzle.base)
    if within >= swizzle.bits:
        return None
    return Swizzle(swizzle.bits - within, swizzle.base + within, swizzle.shift)


def _swizzles(wants: Sequence[Want], size: int, extent: int) -> list[Swizzle]:
    """Swizzles that keep vectors whole and stay within ``extent`` elements, the least first."""
    lowest = _widest(wants).bit_length() - 1
    row = (ROW // size).bit_length() - 1
    found = (
        Swizzle(bits, base, shift)
        for base in range(lowest, row)
        for bits in range(1, row - base + 1)
        for shift in range(bits, extent.bit_length() - base - bits)
        if extent % (1 << (base + bits)) == 0
    )
    return sorted(found, key=lambda swizzle: (swizzle.bits, abs(swizzle.shift - 3), swizzle.base))


def swizzled(layout: Layout, wants: Sequence[Want], size: int) -> Iterator[tuple[str, Layout]]:
    """The same layout with each swizzle."""
    old = layout.swizzle
    # A swizzle needs no more than the rows have with what lies between them.
    room = max((extent * stride for extent, stride in layout.leaves), default=1)
    for swizzle in (None, *_swizzles(wants, size, max(room, 1))):
        if swizzle != old and not (layout.offset and swizzle is None):
            new = Layout(layout.shape, layout.stride, swizzle, layout.offset)
            what = f"{swizzle} in place of {old}" if swizzle and old else "a swizzle"
            yield f"{what if swizzle else 'no swizzle'}: {new}", new


def _axes(wants: Sequence[Want], layout: Layout) -> list[int]:
    """The modes along which rows of a layout may run, that of the present ones first."""
    axes = {want.axis for want in wants if want.axis is not None} or {0, 1}
    return sorted(axes, key=lambda axis: (axis != choose.contiguous_axis(layout), axis))


def atoms(layout: Layout, wants: Sequence[Want], size: int) -> Iterator[tuple[str, Layout]]:
    """Swizzled atoms, repeated over the tile: what a kernel with such reads has, then others."""
    extents = layout.extents
    axes = _axes(wants, layout)
    for atom in (*_chosen(extents, axes, wants, size), *_tried(axes, wants, size)):
        if all(extent % step == 0 for extent, step in zip(extents, atom.extents, strict=True)):
            yield f"{atom}, tiled to ({extents[0]},{extents[1]})", tile_to_shape(atom, extents)


def _chosen(
    extents: tuple[int, ...], axes: Sequence[int], wants: Sequence[Want], size: int
) -> Iterator[Layout]:
    """What kernels that read as these do build from."""
    instructions = {(want.instruction, want.bits) for want in wants}
    for axis in axes:
        for by in (choose.reader(size, axis), universal("ld.shared", 8 * VECTOR)):
            if (by.name, by.bits) in instructions:
                yield choose.swizzled_atom(size, extents, axis, by)


def _tried(axes: Sequence[int], wants: Sequence[Want], size: int) -> Iterator[Layout]:
    for axis, row, rows in product(axes, (128, 64, 32, 16), (8, 16)):
        row //= size
        if row >= _widest(wants):
            plain = row_major(rows, row) if axis else column_major(row, rows)
            for swizzle in (None, *_swizzles(wants, size, rows * row)):
                yield Layout(plain.shape, plain.stride, swizzle)


def padded(layout: Layout, wants: Sequence[Want], size: int) -> Iterator[tuple[str, Layout]]:
    """Rows of the tile, padded."""
    extents, widest = layout.extents, _widest(wants)
    words = max(widest, smem.WORD // size, 1)
    every = range(widest, ROW // size + 1, widest)
    steps = sorted(every, key=lambda step: (step % words > 0, step))
    for axis in _axes(wants, layout):
        for padding in steps:
            pitch = extents[axis] + padding
            new = Layout(extents, (pitch, 1) if axis else (1, pitch))
            yield f"{new}, rows padded by {padding * size} bytes", new


def anew(wants: Sequence[Want], size: int, layout: Layout) -> Home | None:
    """The best home of atoms for a tile of the extents of ``layout``."""
    return search(wants, size, atoms, row_major(*layout.extents))


def _widest(wants: Sequence[Want]) -> int:
    """Elements of the longest vector."""
    return max(want.vectors.shape[1] for want in wants)
