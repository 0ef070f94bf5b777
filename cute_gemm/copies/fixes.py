"""Fixes of a user's copy: other arguments of ``analyze_copy``, evaluated again.

Each change is evaluated like the copy, both sides together. It is suggested only if it is legal, no
side costs more and one side costs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from cute_gemm.access import gmem
from cute_gemm.access.fix import Fix
from cute_gemm.copies.arguments import ALIGNMENT, Copy, undivided
from cute_gemm.copies.atoms import atom_name
from cute_gemm.copies.evaluate import evaluated
from cute_gemm.copies.partners import NamedPartner, assumed_partners, buffer_of
from cute_gemm.cute import choose
from cute_gemm.cute.atoms import universal
from cute_gemm.cute.copies import TiledCopy, gmem_tiled_copy
from cute_gemm.cute.layout import Layout, compact
from cute_gemm.fixes import search
from cute_gemm.fixes import smem as layouts
from cute_gemm.fixes.search import TilePlacement
from cute_gemm.fixes.smem import Pattern
from cute_gemm.rendering.rows import AccessRow, make_row


class Change(NamedTuple):
    """A changed copy, with the changes in words and as arguments of ``analyze_copy``."""

    words: tuple[str, ...]
    arguments: dict[str, Any]
    copy: Copy

    def on(self, place: Change) -> Change:
        """Return the same copy of a tile whose placement is changed too."""
        return Change(self.words + place.words, self.arguments | place.arguments, self.copy)


class Tried(NamedTuple):
    """A change and its accesses: those of the copy, then those of named partners."""

    change: Change
    rows: list[AccessRow]

    @property
    def copy(self) -> Copy:
        """The changed copy."""
        return self.change.copy

    @property
    def own(self) -> int:
        """Number of accesses of the copy itself."""
        return len(self.copy.sides)

    @property
    def faults(self) -> bool:
        """Whether an access of the copy itself is misaligned."""
        return not all(map(self.aligned, range(self.own)))

    def aligned(self, index: int) -> bool:
        """Return whether an access is legal."""
        return self.rows[index].analysis.aligned

    def cost(self, index: int) -> tuple[int, ...]:
        """Return the cost of an access that its row shows, in sectors or wavefronts."""
        total: Any = self.rows[index].analysis.launch
        if isinstance(total, gmem.GlobalCounts):
            return total.sectors, total.l2_sectors
        return (total.wavefronts,)

    def limits(self, index: int) -> tuple[int, ...]:
        """Return the figures that no fix may increase: the cost, and that of hardware counters."""
        counted = getattr(self.rows[index].analysis.launch, "counted_wavefronts", 0)
        return *self.cost(index), max(counted, *self.cost(index))

    def sharers(self, index: int) -> list[int]:
        """Return the other accesses of an access's buffer, if the user names partners."""
        every = range(len(self.rows) if len(self.rows) > self.own else 0)
        return [i for i in every if i != index and self.rows[i].space == "shared"]

    def best(self, index: int) -> bool:
        """Return whether an access is ideal; of global memory, also with the widest vectors."""
        row = self.rows[index]
        wide = row.space == "shared" or row.bits >= 8 * self.copy.size * widest(self.copy)
        return row.good and wide

    def ideal(self, index: int) -> bool:
        """Return whether an access is ideal and the others of its buffer are good."""
        return self.best(index) and all(self.rows[i].good for i in self.sharers(index))

    def quality(self, index: int) -> tuple[bool, float, int]:
        """Return the quality of an access, independent of its cost."""
        legal, ideal, bits = search.quality(self.rows[index])
        return legal and not self.faults, ideal, bits

    def key(self, *indices: int) -> tuple[bool, float, float]:
        """Return the key that compares accesses, per element, best first."""
        faults = self.faults or not all(map(self.aligned, indices))
        cost = sum(sum(self.cost(index)) for index in indices)
        requests = sum(self.rows[index].analysis.launch.requests for index in indices)
        return faults, cost / self.copy.moved, requests / self.copy.moved

    def rank(self, index: int) -> tuple[bool, float, float]:
        """Return the key that ranks fixes of an access; accesses of its buffer count too."""
        return self.key(index, *self.sharers(index))


class CopySearch:
    """The search for fixes of one copy, with its named and assumed partners.

    ``place``: arguments that fixes with another placement of the tensor have in addition.
    """

    def __init__(self, copy: Copy, named: Sequence[NamedPartner], place: dict[str, Any]) -> None:
        accesses, self.tiled = evaluated(copy)
        self.copy, self.named, self.place = copy, named, place
        self.assumed = [] if named else assumed_partners(copy, accesses)
        self.now = self.evaluated(Change((), {}, copy), accesses)

    def rows(self) -> tuple[AccessRow, ...]:
        """Return the accesses of copy and named partners with their fixes, fewest changes first."""
        now = self.now
        offered = [[] if now.best(index) else self.better(index) for index in range(len(now.rows))]
        # A fix of the tensor's side that changes shared memory may fix the other accesses too.
        for index in range(1, len(offered) if now.own > 1 else 0):
            if not any(tried.rows[index].good for tried in (now, *offered[index])):
                both = (x for x in offered[0] if "smem" in x.change.arguments)
                offered[index][:0] = [x for x in both if self.cheaper(x, index)]
        return tuple(
            replace(row, fixes=tuple(self.fix(x, index) for x in offered[index]))
            for index, row in enumerate(now.rows)
        )

    def better(self, index: int) -> list[Tried]:
        """Return the fixes of an access."""
        is_global = self.now.rows[index].space == "global"
        return self.of_global() if is_global else self.of_shared(index)

    # -- trying --------------------------------------------------------------------------------

    def evaluated(self, change: Change, accesses: Any = None) -> Tried:
        """Return a change with its analyzed accesses."""
        accesses = accesses or evaluated(change.copy)[0]
        if buffer_of(change.copy) is not None:
            accesses = [*accesses, *(partner.row(change.copy) for partner in self.named)]
        return Tried(change, [*map(make_row, accesses)])

    def tried(self, change: Change, index: int) -> Tried | None:
        """Return an evaluated change; None if illegal or without gain for the access ``index``."""
        words, arguments, copy = change
        if any(undivided(layout, copy.tiled) for layout, _ in copy.sides):
            return None
        written = copy.direction == "store" and not copy.atom.reduces
        if ("tensor" in arguments or written) and copy.aliases():
            return None
        spelled = copy.packing.spelled(arguments) if copy.packing else (words, arguments)
        if spelled is None:
            return None
        new = self.evaluated(Change(*spelled, copy))
        if "atom" in arguments and new.rows[0].bits != copy.atom.bits:
            return None
        return new if self.no_worse(new, index) and self.cheaper(new, index) else None

    def no_worse(self, new: Tried, index: int) -> bool:
        """Return whether nothing faults, and no side costs more, unless that ends a fault."""
        old = self.now
        if new.faults or len(new.rows) != len(old.rows):
            return False
        layout, _ = new.copy.sides[-1]
        for side, partner in enumerate(self.named, old.own):
            after, before = new.rows[side], old.rows[side]
            if partner.transposed(layout) or (partner.fits(before) and not partner.fits(after)):
                return False
        legal = [*filter(old.aligned, range(len(old.rows)))]
        if not all(map(new.aligned, legal)):
            return False
        if old.faults or not old.aligned(index):
            return True
        return all(
            after * old.copy.moved <= before * new.copy.moved
            for side in legal
            for after, before in zip(new.limits(side), old.limits(side), strict=True)
        )

    def cheaper(self, new: Tried, index: int) -> bool:
        """Return whether an access costs less, itself or in instructions, and is better."""
        return new.key(index) < self.now.key(index) and (
            new.quality(index) > self.now.quality(index) or new.rows[index].good
        )

    def best_of(self, changes: Iterable[Change], index: int) -> Tried | None:
        """Return the cheapest change for an access; the first of equals."""
        tried = (self.tried(change, index) for change in changes)
        return search.cheapest(tried, lambda x: x.rank(index), lambda x: x.ideal(index))

    def fix(self, tried: Tried, index: int) -> Fix:
        """Return the fix of an access by a change."""
        sharers = [tried.rows[i] for i in tried.sharers(index)]
        words, arguments, copy = tried.change
        layout = buffer_of(copy)
        if not sharers and layout is not None and "threads" not in arguments:
            # The assumed partners that are free of conflicts after the change.
            assumed = filter(None, (partner.access(layout) for partner in self.assumed))
            sharers = [row for row in map(make_row, assumed) if row.good]
        if {"tensor", "base_alignment"} & arguments.keys():
            arguments = self.place | arguments
        return search.fix_to(", ".join(words), tried.rows[index], sharers, arguments)

    # -- global memory -------------------------------------------------------------------------

    def of_global(self) -> list[Tried]:
        """Return the fixes of the access of global memory."""
        copy = self.copy
        worst = getattr(self.now.rows[0].analysis, "worst", None)
        pitch, _ = search.pitch_of(copy.layout) or (0, 0)
        tile, extents = TilePlacement(copy.layout, copy.alignment), copy.extents
        return search.search(
            search.rounds(tile, copy.size, extents or copy.layout.extents, pitch, lambda *_: ()),
            self.best_of_round,
            lambda tried: tried.rank(0),
            lambda tried: tried.best(0),
            strided=worst is not None and worst.cause == "strided",
        )

    def best_of_round(self, places: Sequence[TilePlacement]) -> Tried | None:
        """Return the best change of a round, with another layout of shared memory if needed."""
        moved = [change for place in places if (change := self.moved(place)) is not None]
        best = self.best_of(self.changed(moved), 0)
        if self.copy.smem is not None and not (best and best.best(0)):
            wider = self.best_of(self.with_layouts(moved), 0)
            if wider and (best is None or wider.rank(0) < best.rank(0)):
                return wider
        return best

    def moved(self, place: TilePlacement) -> Change | None:
        """Return the copy with another placement; None if its other arguments do not fit."""
        copy = self.copy
        if place.layout == copy.layout:
            better = {"base_alignment": place.alignment} if place.words else {}
            return Change(place.words, better, replace(copy, alignment=place.alignment))
        longer = place.layout.extents != copy.layout.extents
        if longer and (copy.smem is not None or copy.extents is not None):
            return None
        words = f"tensor {place.layout}", *place.words
        return _in(copy, place.layout, place.alignment, *words)

    def changed(self, moved: Iterable[Change]) -> Iterator[Change]:
        """Yield the present copy in new placements, and other copies in all placements."""
        for change in moved:
            if change.arguments:
                yield change
            for other in self.rearranged(change.copy):
                yield other.on(change)

    def rearranged(self, copy: Copy) -> Iterator[Change]:
        """Yield other copies of the tile; only wider ones if it is already coalesced."""
        least = self.now.rows[0].bits if self.now.rows[0].good else 0
        for change in _threads(copy, copy.layout):
            if (change.copy.atom.bits or 0) > least:
                yield change

    def with_layouts(self, moved: Iterable[Change]) -> Iterator[Change]:
        """Yield the two best copies, with layouts of shared memory that keep vectors whole."""
        size, tried = self.copy.size, []
        for change in moved:
            alone = replace(change.copy, smem=None)
            for other in (Change((), {}, alone), *self.rearranged(alone)):
                if undivided(other.copy.layout, other.copy.tiled):
                    continue
                new = self.evaluated(other.on(change))
                fits = "atom" not in other.arguments or new.rows[0].bits == other.copy.atom.bits
                if fits and not new.faults and self.cheaper(new, 0):
                    tried.append(new)
        for new in sorted(tried, key=lambda new: new.key(0))[:2]:
            patterns = self.patterns(new.copy, new.rows[0].bits // (8 * size))
            tile = patterns and layouts.new_layout(patterns, size, self.copy.layout)
            if tile:
                into = _into(new.copy, tile.layout, f"into shared memory {tile.what}")
                words, arguments, _ = new.change
                yield Change(words + into.words, arguments | into.arguments, into.copy)

    # -- shared memory -------------------------------------------------------------------------

    def of_shared(self, index: int) -> list[Tried]:
        """Return the fixes of an access of shared memory: another layout, or another copy."""
        copy = self.copy
        layout, _ = copy.sides[-1]
        tried: list[Tried | None] = []
        kinds = (layouts.swizzled, layouts.atoms, layouts.padded)[: 1 if layout.offset else 3]
        for kind in kinds:
            changes = (
                _into(copy, tile.layout, tile.what)
                for patterns in self.all_patterns()
                for tile in layouts.ranked(patterns, copy.size, kind, layout, 16)
            )
            tried.append(self.best_of(changes, index))
        if copy.atom.matrix is None and index < self.now.own:
            tried.append(self.best_of(_threads(copy, layout), index))
        better = [x for x in tried if x is not None]
        ideal = [x for x in better if x.ideal(index)]
        offered = ideal or sorted(better, key=lambda x: x.rank(index))[:1]
        return [*{x.change.words: x for x in offered}.values()]

    def all_patterns(self) -> Iterator[list[Pattern]]:
        """Yield patterns of copy and partners; then of narrower vectors, and of the copy alone."""
        extents = self.copy.layout.extents
        asked = [partner.copy for partner in self.named or self.assumed]
        now = [evaluated(partner.alone)[1] for partner in self.named]
        partners = [
            [_pattern(copy, extents) for copy in copies if copy.covers(extents)]
            for copies in (asked, now)
        ]
        for width in dict.fromkeys((self.copy.atom.asked(self.copy.size), self.tiled.values)):
            patterns = self.patterns(self.copy, width)
            yield from ([*patterns, *others] for others in partners if patterns and others)
            if patterns and not self.named:
                yield patterns

    def patterns(self, copy: Copy, width: int) -> list[Pattern] | None:
        """Return the requests of a copy to shared memory with vectors of ``width`` elements."""
        bits, values = 8 * copy.size * width, copy.tiled.partition.shape[1]
        if copy.atom.matrix is not None:
            tiled = replace(copy.tiled, atom=copy.atom.matrix)
            width = tiled.bits // tiled.element_bits
        else:
            tiled = replace(copy.tiled, atom=choose.copy_atom(_atom(copy, bits), bits))
            tiled = tiled if copy.space == "shared" else choose.shared_side(tiled)
        return None if values % width else [_pattern(tiled, copy.layout.extents)]


def _pattern(tiled: TiledCopy, extents: tuple[int, ...]) -> Pattern:
    """Return the requests of a copy, by coordinates."""
    elements = tiled.elements(extents)
    idle = (elements < 0).any(axis=-1)
    at = np.where(idle, -1, elements @ (extents[1], 1))
    lanes = np.unique(at[..., 0], axis=0)
    vectors = at.reshape(-1, at.shape[-1])
    vectors = np.unique(vectors[vectors[:, 0] >= 0], axis=0)
    step = np.unique(np.diff(vectors, axis=-1))
    axis = {1: 1, extents[1]: 0}.get(int(step[0])) if step.size == 1 else None
    bits = tiled.bits if tiled.atom.threads == 1 else 128
    return Pattern(tiled.atom.name, bits, lanes, vectors, axis)


# -- other copies, other placements ---------------------------------------------------------------


def _threads(copy: Copy, layout: Layout) -> Iterator[Change]:
    """Yield other layouts of the same number of threads, one vector each, longest runs first.

    Without shared memory only the longest runs, if any, are tried; for shared memory others may be
    better.
    """
    if copy.atom.kind == "bulk":  # by one thread
        return
    shared, threads = copy.space == "shared", len(copy.tiled.partition)
    several = shared or copy.smem is not None or choose.contiguous_axis(layout) is None
    for axis in _along(layout):
        run = min(widest(copy), choose.run(layout.table(), axis))
        for width in (1 << bit for bit in reversed(range(run.bit_length()))):
            value, bits = compact(axis, width), 8 * copy.size * width
            orders = _orders(layout.extents, axis, width, threads, shared)
            for order in orders if several else islice(orders, 1):
                tiled = gmem_tiled_copy(universal("", 8 * copy.size), 8 * copy.size, order, value)
                if tiled.layouts != copy.tiled.layouts or copy.atom.bits != bits:
                    yield _with_threads(copy, tiled, bits)


def _along(layout: Layout) -> tuple[int, int]:
    """Return the two modes, the one with the smaller distance between elements first."""
    first = choose.contiguous_axis(layout)
    if first is None:
        table = layout.table()
        steps = [np.moveaxis(table, axis, 0)[1:2].min(initial=1 << 62) for axis in (0, 1)]
        first = int(steps[1] <= steps[0])
    return first, 1 - first


def _orders(
    extents: tuple[int, ...], axis: int, width: int, threads: int, both: bool
) -> Iterator[Layout]:
    """Yield thread layouts, most lanes along ``axis`` first; ``both``: also those across it."""
    for lanes in range(threads, 0, -1):
        if threads % lanes or extents[axis] % (lanes * width):
            continue
        if extents[1 - axis] % (threads // lanes):
            continue
        yield compact(axis, lanes, threads // lanes)
        if both and 1 < lanes < threads:
            yield compact(1 - axis, threads // lanes, lanes)


def _with_threads(copy: Copy, tiled: TiledCopy, bits: int) -> Change:
    thread, value = tiled.layouts
    name = _atom(copy, bits)
    words = f"threads {thread}", "values ({},{})".format(*value.extents), f"{name} of {bits} bits"
    atom = f"{name}.{bits}"
    arguments: dict[str, Any] = {"threads": str(thread), "values": str(value), "atom": atom}
    if not copy.tiled.layouts:
        arguments |= {"tv": None, "tile": None}
    return Change(words, arguments, replace(copy, tiled=tiled, atom=atom_name(atom)))


def _atom(copy: Copy, bits: int) -> str:
    """Return the instruction of a copy with vectors of ``bits``."""
    return copy.atom.instruction(copy.space, copy.direction, bits)


def widest(copy: Copy) -> int:
    """Return the elements of a fix's widest vector: 16 bytes, or more if the atom is wider.

    The width of a reduction does not change: the name of its atom is that of one operation.
    """
    least = 0 if copy.atom.kind == "reduce" else choose.VECTOR // copy.size
    return max(least, copy.atom.asked(copy.size))


def _in(copy: Copy, layout: Layout, alignment: int, *words: str) -> Change:
    """Return the copy of another tensor, with the space and alignment of the present text."""
    arguments: dict[str, Any] = {"tensor": str(layout)}
    if copy.atom.space is None or copy.atom.kind == "cp.async":
        arguments["space"] = copy.space
    if copy.space == "global":
        arguments["base_alignment"] = alignment
    return Change(words, arguments, replace(copy, layout=layout, alignment=alignment))


def _into(copy: Copy, layout: Layout, *words: str) -> Change:
    """Return the copy with another layout of its tile in shared memory."""
    alignment = ALIGNMENT["shared"]
    if copy.space == "shared":
        return _in(copy, layout, alignment, *words)
    new = replace(copy, smem=layout, smem_alignment=alignment)
    return Change(words, {"smem": str(layout)}, new)
