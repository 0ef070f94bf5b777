"""What would fix an access that is below its ideal, and what the report would read then.

A fix is a concrete change: another thread and value layout, a padded leading dimension, a better
aligned base address, the op whose storage fits, another swizzle, another layout of shared memory.
Each is evaluated by the same model as the access itself; one that does not help is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from cute_gemm._text import named, number, percent
from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.copy.tiles import plain_strides, shared_access
from cute_gemm.analysis.fixes import smem as shared
from cute_gemm.analysis.fixes.smem import Fix, fix_shared, shared_fix
from cute_gemm.cute import choose
from cute_gemm.cute.choose import VECTOR
from cute_gemm.cute.copies import TiledCopy, contiguous
from cute_gemm.cute.layout import Layout, column_major, row_major
from cute_gemm.model import gmem, smem
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from cute_gemm.access import Access

__all__ = ["Fix", "fix_shared", "fixes"]

#: The best ``_quality``.
IDEAL = (True, 1.0, 8 * VECTOR)


def fixes(accesses: Sequence[Access], threads: int = 128) -> list[tuple[Fix, ...]]:
    """What would fix each access of a kernel of ``threads`` per CTA.

    All of them are asked about at once: a shared-memory layout is fixed for every access of its
    buffer, and a copy into shared memory together with the buffer it fills. One tuple per access,
    the fix of fewest changes first; empty where nothing is to be fixed or nothing is known that
    would.

    A global access is to become coalesced and 128 bits wide. Tried are, in this order: the copy
    that `choose` has for the tile, with the widest vectors that memory allows; a leading dimension
    padded to a multiple of 16, 32 or 128 bytes, or a base address aligned to that; both; a longer
    tile; the op whose storage makes the operand contiguous the other way.
    """
    out: list[tuple[Fix, ...]] = [() for _ in accesses]
    groups: dict[tuple[str, str], dict[int, SharedAccess]] = {}
    for index, access in enumerate(accesses):
        if isinstance(access, SharedAccess) and access.layout is not None:
            groups.setdefault((access.operand, str(access.layout)), {})[index] = access
    buffers: dict[str, list[SharedAccess]] = {}
    for (operand, _), group in sorted(groups.items(), key=lambda item: item[0]):
        known = list(group.values())
        assumed = _other_side(known, threads)
        buffers[operand] = [*known, *assumed]
        for index, fixed in zip(group, fix_shared(known, assumed), strict=True):
            out[index] = fixed
    letters = {
        access.operand: "NT"[access.matrix.unit ^ (access.operand == "B")]
        for access in accesses
        if isinstance(access, GlobalAccess) and access.operand in "AB" and 1 in access.matrix.stride
    }
    for index, access in enumerate(accesses):
        if not isinstance(access, GlobalAccess) or access.tail == "elements":
            continue
        fills = {
            at: filled
            for (operand, _), group in groups.items()
            for at, filled in group.items()
            if operand == access.operand != "C"
        }
        buffered = buffers[access.operand] if fills else []
        copies = _fix_global(access, threads, letters, buffered)
        out[index] = tuple(fix for fix, _ in copies)
        # Where no layout frees the whole buffer, what fixes the copy may.
        partly = any(
            not smem.analyze(item).conflict_free
            and all(fix.figures["conflicts"] for fix in out[at])
            for at, item in fills.items()
        )
        for at, item in fills.items():
            if smem.analyze(item).conflict_free or not partly:
                continue
            homes = [(fix, home, [one.direction for one in home]) for fix, home in copies]
            found = (
                shared_fix(fix.what, home, ways.index(item.direction))
                for fix, home, ways in homes
                if item.direction in ways
            )
            once = smem.analyze(item).once
            now = once.conflicts / once.requests if once.requests else 0
            better = tuple(fix for fix in found if fix.figures["conflicts"] < now)
            out[at] = better or out[at]
    return out


# -- global memory --------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A tile in global memory; ``alignment`` of element (0, 0) in bytes."""

    layout: Layout
    alignment: int
    words: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[int, int]:
        return self.layout.extents[0], self.layout.extents[1]


class _Candidate(NamedTuple):
    """A change, the access that it makes, and where the copy is new, that and its axis."""

    words: tuple[str, ...]
    access: GlobalAccess
    copy: TiledCopy | None
    axis: int
    extents: tuple[int, int]  # of the tile


def _fix_global(
    access: GlobalAccess, threads: int, letters: dict[str, str], buffer: Sequence[SharedAccess]
) -> list[tuple[Fix, list[SharedAccess]]]:
    """Fixes of one global access, each with the accesses of the shared memory that it then fills.

    ``letters`` is the op by operand. ``buffer`` are the accesses of the shared memory that is
    filled; when the new copy does not fit their layout, one that does is part of the fix.
    """
    now = gmem.analyze(access)
    best = _quality(access, now)
    size = dtype(access.matrix.dtype).bytes
    if now.worst is None or best == IDEAL:
        return []
    narrow = access.bits < 32 and access.direction == "load" and access.unit == "k-tile"
    instruction = "cp.async" if narrow else access.instruction
    here = _Place(Layout(access.tile, access.matrix.stride), access.matrix.alignment)
    change = _Change(access, here.extents, threads, instruction, size)

    whole = access.matrix.shape
    rounds: tuple[Callable[[], Iterable[_Place]], ...] = (
        lambda: [here],
        lambda: [*_padded(here, size, whole), *_aligned(here)],
        lambda: [both for wider in _padded(here, size, whole) for both in _aligned(wider)],
        lambda: _longer(here, size),
        lambda: _transposed(access, here, letters, size),
    )
    found: list[tuple[Fix, list[SharedAccess]]] = []
    for places in rounds:
        candidates = (c for place in places() for c in change.candidates(place))
        analysed = ((c, gmem.analyze(c.access)) for c in candidates)
        rated = [(_quality(c.access, of), c, of) for c, of in analysed if _as_efficient(of, now)]
        if not rated:
            continue
        quality, choice, analysis = max(rated, key=itemgetter(0))
        # The other op is worth naming beside another copy for the same storage.
        other = places is rounds[-1] and now.worst.cause == "strided" and quality == IDEAL
        if quality > best or other:
            into = _home(choice, buffer, size) if buffer else ("", [])
            if into is None or _dearer(into[1], buffer):
                continue
            word, home = into
            words = (*choice.words, word) if word else choice.words
            best = max(best, quality)
            fix = global_fix(", ".join(words), choice.access, analysis)
            found.append((replace(fix, made=choice.access), home))
    return found


def _quality(access: GlobalAccess, found: gmem.GlobalAnalysis) -> tuple[bool, float, int]:
    judged = found.judged
    ideal = judged.ideal_sectors / judged.sectors if judged.sectors else 1.0
    return found.aligned, ideal, access.bits


def _as_efficient(new: gmem.GlobalAnalysis, old: gmem.GlobalAnalysis) -> bool:
    """Whether something is moved, and no more of it in vain than before."""
    return bool(new.judged.requests) and new.judged.efficiency >= old.judged.efficiency


def global_fix(what: str, access: GlobalAccess, found: gmem.GlobalAnalysis) -> Fix:
    """The fix after which a global access is this one."""
    judged = found.judged
    sectors, ideal = (x / judged.requests for x in (judged.sectors, judged.ideal_sectors))
    figures = {"bits": access.bits, "requests": found.tile.requests, "sectors": sectors}
    figures |= {"ideal_sectors": ideal, "efficiency": judged.efficiency}
    of_l2 = ""
    if judged.l2_sectors != judged.sectors:
        figures["l2_sectors"] = judged.l2_sectors / judged.requests
        of_l2 = f" ({number(figures['l2_sectors'])} of L2)"
    plural = "s" * (sectors != 1)
    reading = f"{number(sectors)} sector{plural} per request{of_l2}, ideal {number(ideal)}, "
    return Fix(what, reading + percent(judged.efficiency), figures)


def of_part(fixed: Sequence[Fix], part: GlobalAccess) -> tuple[Fix, ...]:
    """The fixes of one part of a copy as another part has them; those that fix it too."""
    now, found = gmem.analyze(part), []
    for fix in fixed:
        if fix.made is None:
            continue
        changed = named(fix.made, "matrix", "tile", "coords", "axis", "bits", "instruction")
        same = np.array_equal(part.coords, fix.made.coords)
        access = replace(part, **changed, targets=part.targets if same else None)
        analysis = gmem.analyze(access)
        if _as_efficient(analysis, now) and _quality(access, analysis) > _quality(part, now):
            found.append(replace(global_fix(fix.what, access, analysis), made=access))
    return tuple(found)


@dataclass(frozen=True)
class _Change:
    """How a copy is changed, and what access that makes."""

    access: GlobalAccess
    extents: tuple[int, int]  # of the tile
    threads: int
    instruction: str
    size: int

    def candidates(self, place: _Place) -> Iterator[_Candidate]:
        """The present copy in a place that is new, then the best copy for it."""
        if place.words and (same := self.moved(place)) is not None:
            yield _Candidate(place.words, same, None, self.access.axis, place.extents)
        axis = choose.contiguous_axis(place.layout)
        if axis is None:
            return
        for width in _widths(place, axis, self.size):
            copy = choose.vector_copy(
                self.instruction, self.size, place.extents, axis, width, self.threads
            )
            if not copy.covers(place.extents) or not self.whole(axis, width):
                continue
            thread, value = copy.layouts
            vector, name = "({},{})".format(*value.extents), f"{copy.atom.name} of {copy.bits} bits"
            words = (f"threads {thread}", f"values {vector}", name, *place.words)
            yield _Candidate(words, self.made(place, copy, axis), copy, axis, place.extents)
            return

    def whole(self, axis: int, width: int) -> bool:
        """Whether vectors end where the matrix does: stores must not pass it."""
        free = self.access.direction == "load"
        # Of the matrix too: the report may look at a region of full tiles alone.
        ends = self.access.region[axis], self.access.matrix.shape[axis]
        return free or not any(end % width for end in ends)

    def moved(self, place: _Place) -> GlobalAccess | None:
        """The present copy with its tile in another place; None where it does not fit there."""
        old = self.access
        if place.extents != self.extents:
            return None
        stride: Any = place.layout.stride
        if old.bits > 8 * self.size and stride[old.axis] != 1:
            return None
        return self.in_matrix(place)

    def made(self, place: _Place, copy: TiledCopy, axis: int) -> GlobalAccess:
        """The access that ``copy`` is."""
        # Its targets are side by side, where the new layout puts them.
        return replace(
            self.in_matrix(place), tile=place.extents, coords=copy.requests(place.extents),
            axis=axis, bits=copy.bits, instruction=copy.atom.name, targets=None,
        )  # fmt: skip

    def in_matrix(self, place: _Place) -> GlobalAccess:
        matrix = self.access.matrix
        stride: Any = place.layout.stride  # two integers, as the matrix's were
        matrix = replace(matrix, stride=stride, alignment=place.alignment)
        return replace(self.access, matrix=matrix)


def _widths(place: _Place, axis: int, size: int) -> Iterator[int]:
    """Elements of the vectors along ``axis`` that memory allows, the widest first."""
    table = place.layout.table()
    width = min(VECTOR // size, choose.run(table, axis))
    while width:
        starts = np.take(table, np.arange(0, table.shape[axis], width), axis=axis)
        if width == 1 or not (place.alignment % (width * size) or (starts % width).any()):
            yield width
        width //= 2


def strides(layout: Layout) -> tuple[tuple[int, int], int] | None:
    """The two strides of a layout that has just two, one of them 1, and which mode is the other."""
    stride = plain_strides(layout)
    return ((stride[0], stride[1]), int(stride[0] == 1)) if stride else None


def with_pitch(layout: Layout, pitch: int, pitched: int) -> Layout:
    """A layout of the same extents whose mode ``pitched`` has this stride, and the other 1."""
    return Layout(layout.extents, (1, pitch) if pitched else (pitch, 1))


def padded(
    layout: Layout, size: int, extents: tuple[int, int] | None = None
) -> Iterator[tuple[Layout, str]]:
    """A tile in a matrix whose leading dimension is padded, no shorter than its rows.

    ``extents`` are the matrix's, where they are known.
    """
    found = strides(layout)
    if found is None:
        return
    pitch, rows = found[0][found[1]], (extents or layout.extents)[1 - found[1]]
    # (Rows of a few bytes are better off with less than a vector between them.)
    for granule in (VECTOR, gmem.SECTOR, gmem.LINE, VECTOR // 2, VECTOR // 4):
        step = granule // gcd(granule, size)
        wider = -(-max(pitch, rows) // step) * step
        if wider != pitch:
            yield (
                with_pitch(layout, wider, found[1]),
                f"leading dimension {wider}, a multiple of {granule} bytes",
            )


def aligned(alignment: int) -> Iterator[tuple[int, str]]:
    """Better alignments of a base address."""
    for better in (VECTOR, gmem.SECTOR, gmem.LINE):
        if better > alignment:
            yield better, f"base address aligned to {better} bytes"


def longer(layout: Layout, size: int) -> Iterator[tuple[Layout, str]]:
    """A tile that holds whole sectors along the contiguous mode, where rows have room for that."""
    found = strides(layout)
    if found is None:
        return
    unit, shape = 1 - found[1], list(layout.extents)
    if shape[unit] * size % gmem.SECTOR:
        shape[unit] = -(-shape[unit] * size // gmem.SECTOR) * gmem.SECTOR // size
        if shape[unit] <= found[0][found[1]]:
            yield Layout(tuple(shape), found[0]), f"a tile of ({shape[0]},{shape[1]})"


def _padded(place: _Place, size: int, extents: tuple[int, int]) -> Iterator[_Place]:
    for layout, said in padded(place.layout, size, extents):
        yield _Place(layout, place.alignment, (said,))


def _aligned(place: _Place) -> Iterator[_Place]:
    for alignment, said in aligned(place.alignment):
        yield _Place(place.layout, alignment, (*place.words, said))


def _longer(place: _Place, size: int) -> Iterator[_Place]:
    for layout, said in longer(place.layout, size):
        yield _Place(layout, place.alignment, (said,))


def _transposed(
    access: GlobalAccess, place: _Place, letters: dict[str, str], size: int
) -> Iterator[_Place]:
    """The tile in the storage that is contiguous the other way."""
    found = strides(place.layout)
    if found is None:
        return
    pitched = found[1]
    step, matrix = max(1, gmem.SECTOR // size), access.matrix
    pitch = max(step, -(-matrix.shape[pitched] // step) * step)
    transposed = with_pitch(place.layout, pitch, 1 - pitched)
    stored = f"{matrix.name} {matrix.modes[pitched]}-major"
    words: tuple[str, ...]
    if matrix.name == "C":
        words = (f'order="{"C" if pitched else "F"}", {stored}',)
    else:
        op = letters | {matrix.name: "T" if letters.get(matrix.name) == "N" else "N"}
        known = "".join(op.get(name, "") for name in "AB")
        words = (f"op {known}, {stored}" if len(known) == 2 else stored,)
    if pitch > matrix.shape[pitched]:
        words = (*words, f"leading dimension {pitch}")
    yield _Place(transposed, place.alignment, words)


def _home(
    choice: _Candidate, buffer: Sequence[SharedAccess], size: int
) -> tuple[str, list[SharedAccess]] | None:
    """The shared memory that a new copy needs, and its accesses; none when it fits as it is.

    None where no layout is known in which its vectors lie together.
    """
    copy, layout, extents = choice.copy, buffer[0].layout, choice.extents
    if copy is None or layout is None or layout.extents != extents:
        return "", []
    fits = contiguous(copy.offsets(layout))
    loads = [access for access in buffer if access.direction == "load"]
    wanted, read = loads, ""
    if not fits:
        # The operand lies the other way now: loads of single elements stay, ldmatrix turn with it.
        layout = (row_major if choice.axis else column_major)(*extents)
        wanted = [shared.move_to(load, layout) for load in loads if load.bits == load.element_bits]
        if any(smem.matrices(load.instruction) for load in loads):
            transposed = _matrix_loads(layout, choice.axis, size)
            wanted = [*wanted, *transposed]
            read = "".join(f" read by {load.instruction}" for load in transposed)
        if loads and not wanted and not read:
            read = " (for its stores; the loads have to turn too)"
    wanted = [shared_access(choose.shared_side(copy), layout, "store"), *wanted]
    if fits and all(smem.analyze(access).conflict_free for access in wanted):
        return "", []
    wants = shared.wants_of(wanted)
    home = shared.anew(wants, size, layout) if wants else None
    if home is None:
        return None
    if home.excess:
        read += f", with {home.excess} wavefronts per tile above the ideal"
    moved = [shared.move_to(access, home.layout) for access in wanted]
    return f"into shared memory {home.what}{read}", moved


def _dearer(home: Sequence[SharedAccess], buffer: Sequence[SharedAccess]) -> bool:
    """Whether shared memory costs more then: its stores in all, or its loads beside their ideal."""

    def total(accesses: Sequence[SharedAccess], direction: str) -> tuple[int, int]:
        found = [smem.analyze(access).once for access in accesses if access.direction == direction]
        return sum(one.wavefronts for one in found), sum(one.ideal_wavefronts for one in found)

    stores, loads = ((total(home, way), total(buffer, way)) for way in ("store", "load"))
    dearer = stores[1][0] and stores[0][0] > stores[1][0]
    return bool(dearer or loads[0][0] * loads[1][1] > loads[1][0] * loads[0][1])


def _other_side(known: Sequence[SharedAccess], threads: int) -> list[SharedAccess]:
    """What a buffer of which only the stores or only the loads are known is likely to have beside.

    Stores are read by ldmatrix, ldmatrix reads what 16-byte vectors stored.
    """
    layout, size = known[0].layout, known[0].element_bits // 8
    if layout is None or len({access.direction for access in known}) > 1:
        return []
    axis = choose.contiguous_axis(layout)
    if axis is None:
        return []
    if known[0].direction == "store":
        return _matrix_loads(layout, axis, size)
    if not any(smem.matrices(access.instruction) for access in known):
        return []
    for count in (threads, 32):
        copy = choose.vector_copy("cp.async", size, layout.extents, axis, VECTOR // size, count)
        if copy.covers(layout.extents):
            return _fitting(copy, layout, "store")
    return []


def _matrix_loads(layout: Layout, axis: int, size: int) -> list[SharedAccess]:
    """The ldmatrix that brings a tile to the MMA whose rows run along ``axis``, if there is one."""
    atom = choose.reader(size, axis)
    copy = choose.matrix_copy(atom, size, layout.extents, axis) if atom.destination else None
    return _fitting(copy, layout, "load") if copy else []


def _fitting(
    copy: TiledCopy, layout: Layout, direction: Literal["load", "store"]
) -> list[SharedAccess]:
    """The access that a copy is, where its vectors lie together."""
    fits = contiguous(copy.offsets(layout))
    return [shared_access(copy, layout, direction)] if fits else []
