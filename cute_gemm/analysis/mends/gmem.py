"""What would mend an access that is below its ideal, and what the report would read then.

A mend is a concrete change: another thread and value layout, a padded leading dimension, a better
aligned base address, the op whose storage fits, another swizzle, another layout of shared memory.
Each is evaluated by the same model as the access itself; one that does not help is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cute_gemm._text import number, percent
from cute_gemm.access import GlobalAccess, SharedAccess
from cute_gemm.analysis.copy.tiles import (
    contiguous,
    global_access,
    matrix_blocks,
    matrix_vectors,
    offsets,
    repeated,
    runs_along,
    shared_access,
    vectors,
)
from cute_gemm.analysis.mends.smem import (
    VECTOR,
    Mend,
    anew,
    mend_shared,
    move_to,
    shared_mend,
    wants_of,
)
from cute_gemm.cute.atoms import LDMATRIX, LDMATRIX_TRANS, universal
from cute_gemm.cute.copies import gmem_tiled_copy
from cute_gemm.cute.layout import Layout, column_major, row_major
from cute_gemm.model import gmem, smem
from cute_gemm.problem.dtypes import dtype

if TYPE_CHECKING:
    from cute_gemm.access import Access

__all__ = ["Mend", "mend_global", "mend_shared", "mends"]

#: The best ``_quality``.
IDEAL = (True, 1.0, 8 * VECTOR)


def mends(
    accesses: Sequence[Access],
    threads: int = 128,
    *,
    tensor: Layout | None = None,
    elements: np.ndarray | None = None,
    instruction: str = "",
) -> list[tuple[Mend, ...]]:
    """What would mend each access of a kernel, or of a copy.

    Parameters
    ----------
    accesses
        All of them: a shared-memory layout is mended for every access of its buffer at once, and a
        copy into shared memory together with the buffer it fills.
    threads
        Of a CTA.
    tensor, elements, instruction
        Of a copy of one's own: see ``mend_global``.

    Returns
    -------
    list of tuples of Mend
        One tuple per access, the mend of fewest changes first; empty where nothing is to be mended
        or nothing is known that would.

    Examples
    --------
    ``mends(kernel.accesses(config, problem), launch.block)[0][0].what`` is
    ``"threads (32,4):(4,1), values (1,8), cp.async of 128 bits"``.
    """
    out: list[tuple[Mend, ...]] = [() for _ in accesses]
    shared = [
        (index, access)
        for index, access in enumerate(accesses)
        if isinstance(access, SharedAccess) and access.layout is not None
    ]

    def buffer(item: tuple[int, SharedAccess]) -> tuple[str, str]:
        return item[1].operand, str(item[1].layout)

    buffers: dict[str, list[SharedAccess]] = {}
    for (operand, _), group in groupby(sorted(shared, key=buffer), key=buffer):
        items = list(group)
        known = [access for _, access in items]
        assumed = _other_side(known, threads)
        buffers[operand] = [*known, *assumed]
        for (index, _), mended in zip(items, mend_shared(known, assumed), strict=True):
            out[index] = mended
    letters = {
        access.operand: "NT"[
            access.matrix.unit if access.operand == "A" else 1 - access.matrix.unit
        ]
        for access in accesses
        if isinstance(access, GlobalAccess) and access.operand in "AB" and 1 in access.matrix.stride
    }
    for index, access in enumerate(accesses):
        if not isinstance(access, GlobalAccess) or access.tail == "elements":
            continue
        fills = [item for item in shared if item[1].operand == access.operand != "C"]
        copies = _mend_global(
            access,
            threads,
            tensor=tensor,
            elements=elements,
            instruction=instruction,
            letters=letters,
            buffer=buffers[access.operand] if fills else (),
        )
        out[index] = tuple(mend for mend, _ in copies)
        # Where no layout frees the whole buffer, what mends the copy may.
        partly = any(mend.figures["conflicts"] for at, _ in fills for mend in out[at])
        for at, item in fills:
            if not smem.analyze(item).conflict_free and (partly or not out[at]):
                out[at] = (
                    tuple(
                        shared_mend(
                            mend.what, home, [x.direction for x in home].index(item.direction)
                        )
                        for mend, home in copies
                        if item.direction in [x.direction for x in home]
                    )
                    or out[at]
                )
    return out


# -- global memory --------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A tile in global memory."""

    layout: Layout
    alignment: int  # of element (0, 0), bytes
    words: tuple[str, ...] = ()

    @property
    def extents(self) -> tuple[int, int]:
        return self.layout.extents[0], self.layout.extents[1]


class _Candidate(NamedTuple):
    """A change, the access that it makes, and the copy's elements where the copy is new."""

    words: tuple[str, ...]
    access: GlobalAccess
    elements: np.ndarray | None  # [requests, 32, width, 2]
    axis: int
    extents: tuple[int, int]  # of the tile


def mend_global(
    access: GlobalAccess,
    threads: int = 128,
    *,
    tensor: Layout | None = None,
    elements: np.ndarray | None = None,
    instruction: str = "",
) -> tuple[Mend, ...]:
    """What would make one global access coalesced and 128 bits wide.

    Tried are, in this order: another thread and value layout with the widest vectors that memory
    allows; a leading dimension padded to a multiple of 16, 32 or 128 bytes, or a base address
    aligned to that; both; the op whose storage makes the operand contiguous the other way.

    Parameters
    ----------
    access
        The access.
    threads
        Of a CTA.
    tensor, elements
        What ``access`` was made of, when it comes from ``tiled_copy.global_access``.
    instruction
        What a wider access would be (``"cp.async"``); by default what it is, or cp.async for a load
        of a k-tile that only its width keeps from being one.

    Returns
    -------
    tuple of Mend
        Fewest changes first; empty when nothing helps.
    """
    found = _mend_global(access, threads, tensor=tensor, elements=elements, instruction=instruction)
    return tuple(mend for mend, _ in found)


def _mend_global(
    access: GlobalAccess,
    threads: int,
    *,
    tensor: Layout | None = None,
    elements: np.ndarray | None = None,
    instruction: str = "",
    letters: dict[str, str] | None = None,
    buffer: Sequence[SharedAccess] = (),
) -> list[tuple[Mend, list[SharedAccess]]]:
    """``mend_global``; each mend with the accesses of the shared memory that the copy then fills.

    ``letters`` is the op by operand. ``buffer`` are the accesses of the shared memory that is
    filled; when the new copy does not fit their layout, one that does is part of the mend.
    """
    if access.tail == "elements":  # only ever the elements of a straddling vector
        return []
    now = gmem.analyze(access)
    best = _quality(access, now)
    size = dtype(access.matrix.dtype).bytes
    if now.worst is None or best == IDEAL:
        return []
    if not instruction:
        narrow = access.bits < 32 and access.direction == "load" and access.unit == "k-tile"
        instruction = "cp.async" if narrow else access.instruction
    layout = tensor or Layout(access.tile, access.matrix.stride)
    here = _Place(layout, access.matrix.alignment)
    change = _Change(access, elements, threads, instruction, size)

    rounds: tuple[Callable[[], Iterable[_Place]], ...] = (
        lambda: [here],
        lambda: [*_padded(here, size), *_aligned(here)],
        lambda: [both for padded in _padded(here, size) for both in _aligned(padded)],
        lambda: _longer(here, size),
        lambda: _turned(access, here, tensor is not None, letters or {}, size),
    )
    found: list[tuple[Mend, list[SharedAccess]]] = []
    for places in rounds:
        candidates = [c for place in places() for c in change.candidates(place)]
        rated = [(c, gmem.analyze(c.access)) for c in candidates]
        if not rated:
            continue
        choice, analysis = max(rated, key=lambda pair: _quality(pair[0].access, pair[1]))
        quality = _quality(choice.access, analysis)
        # The other op is worth naming beside another copy for the same storage.
        other = places is rounds[-1] and now.worst.cause == "strided" and quality == IDEAL
        if quality > best or other:
            best = max(best, quality)
            word, home = _home(choice, buffer, size) if buffer else ("", [])
            words = (*choice.words, word) if word else choice.words
            found.append((_global_mend(words, choice.access, analysis), home))
    return found


def _quality(access: GlobalAccess, found: gmem.GlobalAnalysis) -> tuple[bool, float, int]:
    judged = found.judged
    ideal = judged.ideal_sectors / judged.sectors if judged.sectors else 1.0
    return found.aligned, ideal, access.bits


def _global_mend(words: Iterable[str], access: GlobalAccess, found: gmem.GlobalAnalysis) -> Mend:
    judged = found.judged
    per = [count / judged.requests for count in (judged.sectors, judged.ideal_sectors)]
    reading = f"{number(per[0])} sectors per request, ideal {number(per[1])}, "
    figures = {
        "bits": access.bits,
        "requests": found.tile.requests,
        "sectors": per[0],
        "ideal_sectors": per[1],
        "efficiency": judged.efficiency,
    }
    return Mend(", ".join(words), reading + percent(judged.efficiency), figures)


@dataclass(frozen=True)
class _Change:
    """How a copy is changed, and what access that makes."""

    access: GlobalAccess
    elements: np.ndarray | None
    threads: int
    instruction: str
    size: int

    def candidates(self, place: _Place) -> Iterator[_Candidate]:
        """The present copy in a place that is new, then the best copy for it."""
        if place.words and (same := self.moved(place)) is not None:
            yield _Candidate(place.words, same, None, self.access.axis, place.extents)
        table = place.layout.table()
        axis = _contiguous_axis(table)
        if axis is None:
            return
        for width in _widths(table, axis, place.alignment, self.size):
            copy = _along(place.extents, axis, width, self.threads, self.size)
            if copy is None or not self.whole(axis, width):
                continue
            thread, elements = copy
            bits = 8 * width * self.size
            name = self.instruction
            if name == "cp.async" and bits < 32:
                name = "ld.global"
            vector = f"(1,{width})" if axis else f"({width},1)"
            words = (f"threads {thread}", f"values {vector}", f"{name} of {bits} bits")
            access = self.made(place, elements, axis, bits, name)
            yield _Candidate(words + place.words, access, elements, axis, place.extents)
            return

    def whole(self, axis: int, width: int) -> bool:
        """Whether vectors end where the matrix does: stores must not pass it."""
        free = self.elements is not None or self.access.direction == "load"
        # Of the matrix too: the report may look at a region of full tiles alone.
        ends = self.access.region[axis], self.access.matrix.shape[axis]
        return free or not any(end % width for end in ends)

    def moved(self, place: _Place) -> GlobalAccess | None:
        """The present copy with its tile in another place; None where it does not fit there."""
        old = self.access
        if self.elements is not None:
            at = offsets(place.layout.table(), self.elements)
            if not contiguous(at):
                return None
            return self.made(place, self.elements, old.axis, old.bits, old.instruction)
        width = old.bits // (8 * self.size)
        stride = place.layout.stride
        assert isinstance(stride, tuple)
        if place.extents != old.tile or (width > 1 and stride[old.axis] != 1):
            return None
        return self.in_matrix(place)

    def made(
        self, place: _Place, elements: np.ndarray, axis: int, bits: int, name: str
    ) -> GlobalAccess:
        if self.elements is not None:
            return global_access(
                place.layout,
                elements,
                self.access.direction,
                name,
                self.access.matrix.dtype,
                place.alignment,
            )
        return replace(
            self.in_matrix(place),
            tile=place.extents,
            coords=elements[:, :, 0],
            axis=axis,
            bits=bits,
            instruction=name,
            targets=None,  # side by side, where the new layout puts them
        )

    def in_matrix(self, place: _Place) -> GlobalAccess:
        matrix = self.access.matrix
        stride: Any = place.layout.stride  # two integers, as the matrix's were
        return replace(
            self.access, matrix=replace(matrix, stride=stride, alignment=place.alignment)
        )


def _along(
    extents: tuple[int, int], axis: int, width: int, threads: int, size: int
) -> tuple[Layout, np.ndarray] | None:
    """The copy of a tile by vectors along ``axis``: its thread layout, and what it addresses.

    As many threads lie along ``axis`` as its extent has vectors; None when the others do not divide
    the other extent.
    """
    lanes = gcd(extents[axis] // width, threads)
    across = threads // lanes
    if extents[1 - axis] % across:
        return None
    thread = row_major(across, lanes) if axis else column_major(lanes, across)
    value = row_major(1, width) if axis else column_major(width, 1)
    copy = gmem_tiled_copy(universal("", 8 * width * size), 8 * size, thread, value)
    return thread, repeated(vectors(copy.partition, width), copy.tile, extents)


def _contiguous_axis(table: np.ndarray) -> int | None:
    """The mode along which elements lie together; the longer run where both do."""
    runs = []
    for axis in (0, 1):
        width = 1
        while runs_along(table, axis, 2 * width):
            width *= 2
        runs.append(width)
    if max(runs) == 1:
        return None
    return 0 if runs[0] >= runs[1] else 1


def _widths(table: np.ndarray, axis: int, alignment: int, size: int) -> Iterator[int]:
    """Elements of the vectors along ``axis`` that memory allows, the widest first."""
    width = VECTOR // size
    while width:
        starts = np.take(table, np.arange(0, table.shape[axis], width), axis=axis)
        fits = width == 1 or (alignment % (width * size) == 0 and not (starts % width).any())
        if fits and runs_along(table, axis, width):
            yield width
        width //= 2


def _strides(layout: Layout) -> tuple[tuple[int, int], int] | None:
    """The two strides of a layout that has just two, one of them 1, and which mode is the other."""
    stride = layout.coalesced().stride
    if layout.swizzle or not isinstance(stride, tuple) or len(stride) != 2:
        return None
    first, second = stride
    if not isinstance(first, int) or not isinstance(second, int) or 1 not in (first, second):
        return None
    return (first, second), 1 if first == 1 else 0


def _with_pitch(layout: Layout, pitch: int, pitched: int) -> Layout:
    return Layout(layout.extents, (1, pitch) if pitched else (pitch, 1))


def _padded(place: _Place, size: int) -> Iterator[_Place]:
    """The tile in a matrix whose leading dimension is padded."""
    found = _strides(place.layout)
    if found is None:
        return
    strides, pitched = found
    pitch = strides[pitched]
    for granule in (VECTOR, gmem.SECTOR, gmem.LINE):
        step = granule // gcd(granule, size)
        if pitch % step:
            padded = -(-pitch // step) * step
            words = (f"leading dimension {padded}, a multiple of {granule} bytes",)
            yield _Place(_with_pitch(place.layout, padded, pitched), place.alignment, words)


def _aligned(place: _Place) -> Iterator[_Place]:
    """The tile in a matrix whose base address is better aligned."""
    for alignment in (VECTOR, gmem.SECTOR, gmem.LINE):
        if alignment > place.alignment:
            words = (*place.words, f"base address aligned to {alignment} bytes")
            yield _Place(place.layout, alignment, words)


def _longer(place: _Place, size: int) -> Iterator[_Place]:
    """A tile that holds whole sectors along the contiguous mode."""
    found = _strides(place.layout)
    if found is None:
        return
    unit, shape = 1 - found[1], list(place.layout.extents)
    if shape[unit] * size % gmem.SECTOR:
        shape[unit] = -(-shape[unit] * size // gmem.SECTOR) * gmem.SECTOR // size
        words = (f"a tile of ({shape[0]},{shape[1]})",)
        yield _Place(Layout(tuple(shape), found[0]), place.alignment, words)


def _turned(
    access: GlobalAccess, place: _Place, flat: bool, letters: dict[str, str], size: int
) -> Iterator[_Place]:
    """The tile in the storage that is contiguous the other way."""
    found = _strides(place.layout)
    if found is None:
        return
    strides, pitched = found
    unit = 1 - pitched
    if flat:
        turned = _with_pitch(place.layout, strides[pitched], unit)
        yield _Place(turned, place.alignment, (f"tensor {turned}",))
        return
    step = gmem.SECTOR // size
    matrix = access.matrix
    turned = _with_pitch(place.layout, max(step, -(-matrix.shape[pitched] // step) * step), unit)
    names = matrix.modes
    stored = f"{matrix.name} {names[pitched]}-major"
    if matrix.name == "C":
        words = (f'order="{"C" if pitched else "F"}", {stored}',)
    else:
        op = letters | {matrix.name: "T" if letters.get(matrix.name) == "N" else "N"}
        known = "".join(op.get(name, "") for name in "AB")
        words = (f"op {known}, {stored}" if len(known) == 2 else stored,)
    yield _Place(turned, place.alignment, words)


def _home(
    choice: _Candidate, buffer: Sequence[SharedAccess], size: int
) -> tuple[str, list[SharedAccess]]:
    """The shared memory that a new copy needs, and its accesses; nothing when it fits as it is."""
    elements, layout, extents = choice.elements, buffer[0].layout, choice.extents
    if elements is None or layout is None or layout.extents != extents:
        return "", []
    bits = choice.access.bits
    name = "cp.async" if choice.access.instruction == "cp.async" else "st.shared"
    fits = contiguous(offsets(layout.table(), elements))
    loads = [access for access in buffer if access.direction == "load"]
    wanted, read = loads, ""
    if not fits:
        # The operand lies the other way now: loads of single elements stay, ldmatrix turn with it.
        layout = (row_major if choice.axis else column_major)(*extents)
        wanted = [move_to(load, layout) for load in loads if load.bits == load.element_bits]
        if any(smem.matrices(load.instruction) for load in loads):
            turned = _matrix_loads(layout, choice.axis, size)
            wanted = [*wanted, *turned]
            read = "".join(f" read by {load.instruction}" for load in turned)
        if loads and not wanted and not read:
            read = " (for its stores; the loads have to turn too)"
    wanted = [shared_access(layout, elements, "store", name, bits, size), *wanted]
    if fits and all(smem.analyze(access).conflict_free for access in wanted):
        return "", []
    wants = wants_of(wanted)
    home = anew(wants, size, layout) if wants else None
    if home is None:
        return "with a shared-memory layout in which its vectors lie together", []
    if home.excess:
        read += f", with {home.excess} wavefronts per tile above the ideal"
    moved = [move_to(access, home.layout) for access in wanted]
    return f"into shared memory {home.what}{read}", moved


def _other_side(known: Sequence[SharedAccess], threads: int) -> list[SharedAccess]:
    """What a buffer of which only the stores or only the loads are known is likely to have beside.

    Stores are read by ldmatrix, ldmatrix reads what 16-byte vectors stored.
    """
    layout, size = known[0].layout, known[0].element_bits // 8
    if layout is None or len({access.direction for access in known}) > 1:
        return []
    axis = _contiguous_axis(layout.table())
    if axis is None:
        return []
    if known[0].direction == "store":
        return _matrix_loads(layout, axis, size)
    width = VECTOR // size
    if not any(smem.matrices(access.instruction) for access in known):
        return []
    extents = (layout.extents[0], layout.extents[1])
    copy = _along(extents, axis, width, threads, size) or _along(extents, axis, width, 32, size)
    if copy is None or not contiguous(offsets(layout.table(), copy[1])):
        return []
    return [shared_access(layout, copy[1], "store", "cp.async", 8 * VECTOR, size)]


def _matrix_loads(layout: Layout, axis: int, size: int) -> list[SharedAccess]:
    """The ldmatrix that brings a tile to the MMA whose rows run along ``axis``, if there is one."""
    extents = (layout.extents[0], layout.extents[1])
    atom = LDMATRIX if axis == 1 else LDMATRIX_TRANS
    if size != 2 and (axis == 0 or size > 4):
        return []
    block = matrix_blocks(atom, extents, axis, 8 * size)
    if block is None:
        return []
    tile = (int(block[..., 0].max()) + 1, int(block[..., 1].max()) + 1)
    rows = repeated(matrix_vectors(block, atom, 8 * size), tile, extents)
    return [shared_access(layout, rows, "load", atom.name, atom.bits, size)]
